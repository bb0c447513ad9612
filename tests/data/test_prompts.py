import json
import random

import pytest
from data_parts import json_lines, make_recipe

from longstride.data.held_out import benchmark_problems
from longstride.data.prompts import build_candidates, curate
from longstride.data.sft import build_chat_examples
from longstride.errors import DataError
from longstride.rollout.protocol import Sample
from longstride.store.artifacts import open_artifact
from longstride.store.files import read_jsonl
from longstride.tokens.chat import render_prompt
from schemas.rows import ChatExample, Message, RLPrompt


class Policy:
    """A generator that answers each prompt rightly with its own probability."""

    def __init__(self, tokenizer, prompts, skill):
        self.tokenizer = tokenizer
        self.skill = skill
        self.by_ids = {
            tuple(render_prompt(tokenizer, [Message(role="user", content=p.prompt)])): p
            for p in prompts
        }

    def generate(self, prompts, samples_per_prompt, settings, seed, progress=None):
        self.settings = settings
        rng = random.Random(seed)
        return [
            [self.sample(self.by_ids[tuple(ids)], rng) for _ in range(samples_per_prompt)]
            for ids in prompts
        ]

    def sample(self, prompt, rng):
        t = self.tokenizer
        answer = prompt.answer if rng.random() < self.skill(prompt) else "12345"
        tokens = [t.think_id, *t.encode("so"), t.end_think_id, *t.encode(answer), t.end_id]
        return Sample(tokens, [-0.5] * len(tokens), "stop")


@pytest.fixture
def candidates(recipe, tmp_path):
    build_chat_examples(recipe, tmp_path / "chat")
    return build_candidates(recipe, tmp_path / "chat")


def run(recipe, candidates, tokenizer, out, skill):
    policy = Policy(tokenizer, candidates, skill)
    return curate(recipe, candidates, policy, tokenizer, out, window=40), policy


def test_candidates_share_no_prompt_with_sft_or_the_benchmark(recipe, candidates, tmp_path):
    examples = read_jsonl(tmp_path / "chat" / "examples.jsonl", ChatExample)
    taken = {example.messages[0].content for example in examples}
    taken |= {problem.prompt for problem in benchmark_problems(recipe)}
    assert len(candidates) == 40
    assert taken.isdisjoint(prompt.prompt for prompt in candidates)


def test_only_prompts_inside_the_band_are_kept(recipe, candidates, tokenizer, tmp_path):
    skill = {0: 1.0, 1: 0.5, 2: 0.0}
    manifest, _ = run(recipe, candidates, tokenizer, tmp_path / "o", lambda p: skill[p.level])
    kept = list(read_jsonl(tmp_path / "o" / "prompts.jsonl", RLPrompt))
    dropped = json_lines(tmp_path / "o" / "dropped.jsonl")
    assert open_artifact(tmp_path / "o", "prompts") == manifest
    assert {p.level for p in kept} == {1} and all(0 < p.pass_rate < 0.9 for p in kept)
    assert len(kept) + len(dropped) == manifest.counts["candidates"] == 40
    easy, hard = ([d["level"] for d in dropped if d["reason"] == r]
                  for r in ("too_easy", "never_solved"))  # fmt: skip
    assert easy.count(0) == sum(p.level == 0 for p in candidates)
    assert hard.count(2) == sum(p.level == 2 for p in candidates)


def test_the_policy_samples_as_rl_will(recipe, candidates, tokenizer, tmp_path):
    _, policy = run(recipe, candidates, tokenizer, tmp_path / "o", lambda p: 0.5)
    settings = policy.settings
    assert (settings.max_new_tokens, settings.temperature, settings.top_p) == (40, 1.0, 1.0)
    assert settings.stop_ids == (tokenizer.end_id,)


@pytest.mark.parametrize(
    ("skill", "histogram", "fix"),
    [(1.0, "{'1.00': 40}", "add harder levels"), (0.0, "{'0.00': 40}", "train SFT longer")],
)
def test_too_few_survivors_is_refused_with_the_histogram_and_the_fix(
    recipe, candidates, tokenizer, tmp_path, skill, histogram, fix
):
    with pytest.raises(DataError, match="only 0 of 40 RL prompts") as caught:
        run(recipe, candidates, tokenizer, tmp_path / "o", lambda p: skill)
    assert histogram in str(caught.value) and fix in str(caught.value)
    assert not (tmp_path / "o" / "manifest.json").exists()


def test_prompts_that_leave_no_room_for_the_answer_are_dropped(
    prose_folder, candidates, tokenizer, tmp_path
):
    extension = [{"window": 81, "rope_base": 20_000, "tokens": 8_000, "learning_rate": 1e-3}]
    tight = make_recipe(prose_folder, extension=extension)
    lengths = [
        len(render_prompt(tokenizer, [Message(role="user", content=p.prompt)])) for p in candidates
    ]
    assert min(lengths) > 81 - 80  # the last rung of the ladder
    with pytest.raises(DataError, match="'unmeasured': 40"):
        curate(tight, candidates, Policy(tokenizer, [], None), tokenizer, tmp_path / "o", window=40)


def test_a_verifier_that_cannot_judge_is_counted_and_never_a_zero(
    recipe, candidates, tokenizer, tmp_path
):
    broken = candidates[0].model_copy(update={"family": "gcd", "entry": {}})
    prompts = [broken, *candidates[1:]]
    manifest, _ = run(recipe, prompts, tokenizer, tmp_path / "o", lambda p: 0.5)
    assert manifest.counts["unjudged_samples"] == 4
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert summary["not_judged"] == {"error": 4}
    assert json_lines(tmp_path / "o" / "dropped.jsonl")[0]["reason"] == "not_judged"
