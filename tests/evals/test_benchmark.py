import random

import pytest

from longstride.errors import DataError
from longstride.evals.benchmark import benchmark_problems, prompt_set_digest, run_benchmark
from longstride.rollout.protocol import Sample
from longstride.store.artifacts import open_artifact
from longstride.store.files import read_json, read_jsonl
from longstride.tokens.tokenizer import Tokenizer
from schemas.model import TokenizerConfig
from schemas.recipe import Recipe
from schemas.rows import EvalResult, EvalSample


def recipe_of(**changes) -> Recipe:
    levels = [
        {"parameters": {"min_terms": n, "max_terms": n, "min_digits": 1, "max_digits": 1}}
        for n in (2, 3)
    ]
    values = {
        "name": "bench",
        "data": {
            "sources": [{"kind": "files", "name": "x", "domain": "web", "uri": "unused"}],
            "mixture": {"web": 1.0},
        },
        "tasks": [{"name": "chain_sum", "levels": levels}],
        "extension": [{"window": 256, "rope_base": 2e4, "tokens": 1, "learning_rate": 1e-3}],
        "benchmark": {"problems_per_level": 10, "samples_per_problem": 4},
    }
    return Recipe.model_validate({**values, **changes})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    texts = [problem.prompt for problem in benchmark_problems(recipe_of())]
    return Tokenizer.train(texts, TokenizerConfig(vocab_size=320), tmp_path_factory.mktemp("t"))


class Policy:
    """Answers in the order of the benchmark: level 0 always rightly, level 1 half the time."""

    def __init__(self, tokenizer, recipe):
        self.tokenizer, self.problems = tokenizer, benchmark_problems(recipe)

    def generate(self, prompts, samples_per_prompt, settings, seed, progress=None):
        self.settings, self.seed = settings, seed
        rng = random.Random(seed)
        return [[self.sample(p, rng) for _ in range(samples_per_prompt)] for p in self.problems]

    def sample(self, problem, rng):
        t = self.tokenizer
        right = problem.level == 0 or rng.random() < 0.5
        thinking = t.encode("." * (1 + rng.randrange(20)))
        answer = t.encode(problem.answer if right else "12345")
        tokens = [t.think_id, *thinking, t.end_think_id, *answer, t.end_id]
        return Sample(tokens, [-1.0] * len(tokens), "stop")


def run(tokenizer, out, recipe=None, label="sft"):
    recipe = recipe or recipe_of()
    policy = Policy(tokenizer, recipe)
    return run_benchmark(recipe, policy, tokenizer, label, "sha256:c", out, 40), policy


def test_the_result_agrees_with_its_samples(tokenizer, tmp_path):
    result, _ = run(tokenizer, tmp_path)
    samples = list(read_jsonl(tmp_path / "samples.jsonl", EvalSample))
    assert len(samples) == 2 * 10 * 4 == result.average.samples
    assert result.average.mean == pytest.approx(sum(s.correct for s in samples) / 80)
    assert result.by_level["chain_sum/0"].mean == 1.0
    assert 0.2 < result.by_level["chain_sum/1"].mean < 0.8
    assert result.by_level["chain_sum/1"].problems == len(result.problem_means) / 2 == 10
    assert result.length_p99 <= max(s.length for s in samples)


def test_the_artifact_is_whole_and_typed(tokenizer, tmp_path):
    result, _ = run(tokenizer, tmp_path)
    manifest = open_artifact(tmp_path, "eval")
    assert manifest.counts == {"problems": 20, "samples": 80}
    assert manifest.parents == {"checkpoint": "sha256:c"}
    assert read_json(tmp_path / "result.json", EvalResult) == result
    assert result.verifier_version.startswith("reasoning-gym ")


def test_sampling_follows_the_recipe(tokenizer, tmp_path):
    _, policy = run(tokenizer, tmp_path)
    settings = policy.settings
    assert (settings.max_new_tokens, settings.temperature, settings.top_p) == (40, 1.0, 0.95)
    assert settings.stop_ids == (tokenizer.end_id,) and policy.seed == 1_000_000


def test_the_same_seed_gives_the_same_bytes(tokenizer, tmp_path):
    for name in ("a", "b"):
        run(tokenizer, tmp_path / name)
    first, again = (open_artifact(tmp_path / name, "eval") for name in ("a", "b"))
    assert first == again


def test_the_prompt_set_digest_ignores_order_and_sees_every_change():
    problems = benchmark_problems(recipe_of())
    changed = [problems[0].model_copy(update={"answer": "x"}), *problems[1:]]
    assert prompt_set_digest(problems) == prompt_set_digest(problems[::-1])
    assert prompt_set_digest(problems) != prompt_set_digest(changed)
    assert prompt_set_digest(problems) != prompt_set_digest(problems[1:])


def test_a_level_with_too_few_problems_is_refused_with_the_fix():
    with pytest.raises(DataError, match=r"level 0 has \d+ distinct benchmark problems.*widen"):
        benchmark_problems(recipe_of(benchmark={"problems_per_level": 150}))


def test_levels_that_overlap_are_filled_with_distinct_problems():
    levels = [
        {"parameters": {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}}
    ] * 3
    problems = benchmark_problems(recipe_of(tasks=[{"name": "chain_sum", "levels": levels}]))
    assert len({p.prompt for p in problems}) == len(problems) == 30
    assert [sum(p.level == level for p in problems) for level in range(3)] == [10, 10, 10]
