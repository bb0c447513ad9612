"""Prompts of the user's own: types, references, overlap, plan, account; and the second choice."""

import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_parts import json_lines, make_recipe
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.data.answer_types import Question, open_question
from longstride.data.measures.overlap import Problem
from longstride.data.prompt_sources import read_prompts
from longstride.data.prompts import CurationSummary, build_candidates, curate, user_prompts
from longstride.data.recuration import RecurationSummary, prompts_of_round, recurate
from longstride.data.sft import build_chat_examples
from longstride.errors import DataError
from longstride.store.files import read_json, read_jsonl, write_jsonl
from schemas.curriculum import PassHistory
from schemas.prompts import PromptSource, SecondPhase
from schemas.rows import RLPrompt

CHOICES = "A train leaves at noon and arrives at {n}. How many hours does it take?\n"


@pytest.mark.parametrize(
    ("question", "answer", "kind"),
    [
        ("Prove that there are infinitely many primes.", "see proof", "proof"),
        ("Show that n^2 + n is even.", "even", "proof"),
        ("Let x = 3. (a) Find x^2. (b) Find x^3.", "9, 27", "multi_part"),
        ("Solve.\n(i) 2x = 4\n(ii) 3x = 9", "2; 3", "multi_part"),
        ("Part A: find x. Part B: find y.", "1, 2", "multi_part"),
        ("True or false: 7 is prime.", "true", "binary"),
        ("Is 91 a prime number?", "No.", "binary"),
        ("Which of the following is prime?\nA) 4\nB) 6\nC) 7\nD) 9", "C", "multiple_choice"),
        ("What is the smallest prime?\n(A) 1\n(B) 2\n(C) 3\n(D) None of these", "B",
         "multiple_choice"),
        ("What is two plus two?\nA. 3\nB. 4\nC. 5", "E", "multiple_choice"),
        ("How many sides has a hexagon?", "  ", "no_answer"),
    ],
)  # fmt: skip
def test_a_question_that_no_rule_can_judge_is_named_by_its_type(question, answer, kind):
    assert open_question(question, answer) == kind


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ("A) 3\nB) 4\nC) 5\nD) 6", "B"),
        ("(A) 3 (B) 4 (C) 5 (D) 6", "(B)"),
        ("A. 3\nB. 4\nC. 5", "b"),
        (r"$\textbf{(A)}\ 3\qquad\textbf{(B)}\ 4\qquad\textbf{(C)}\ 5$", "B"),
        ("A: 3\nB: 4\nC: 5", "4"),
    ],
)
def test_multiple_choice_becomes_open_where_the_question_stands_alone(options, answer):
    stem = CHOICES.format(n="four").strip()
    found = open_question(f"{stem}\n{options}", answer)
    assert found == Question(stem, "4", rewritten=True)


@pytest.mark.parametrize(
    "question",
    ["What is 3 + 4?", "Point A lies on a circle. Point B does too. How far is A from B?",
     "Let f(a) = 2 and f(b) = 3. Find f(a) + f(b).", "Improve the estimate of pi to 3 digits.",
     "Ann (a) and Bob share 12 apples. How many has each?"],
)  # fmt: skip
def test_ordinary_questions_stay_as_they_are(question):
    assert open_question(question, "7") == Question(question, "7")


def write(folder, rows, name="set.jsonl"):
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PromptSource(name="mine", uri=str(folder / name))


def row(question, answer, **more):
    return {"question": question, "answer": answer, **more}


def ask(n):
    return f"A shop sold {n} lamps in May and twice as many in June. How many lamps is that?"


def test_every_row_is_a_prompt_or_dropped_with_a_reason_or_quarantined(tmp_path):
    source = write(tmp_path, [
        row(ask(3), 9),
        row(ask(3), 9),
        row("Prove it.", "x"),
        row("How long is the river that the seven old surveyors measured in spring?", "12"),
        row(CHOICES.format(n=5) + "A) 4\nB) 5\nC) 6", "B"),
        {"question": "no answer here"},
        {"answer": "no question"},
        7,
    ])  # fmt: skip
    taken = [Problem("t", "river", "Say how long is the river that the seven old surveyors saw.")]
    found = read_prompts([source], taken)
    assert [(p.prompt, p.answer) for p in found.prompts] == [
        (ask(3), "9"), (CHOICES.format(n=5).strip(), "5"),
    ]  # fmt: skip
    assert [reason for _, reason in found.dropped] == ["duplicate", "proof", "overlap"]
    assert [where for _, where, _ in found.quarantined] == [f"set.jsonl:{n}" for n in (6, 7, 8)]
    assert found.rows == {"mine": 8} and found.rewritten == 1


def test_a_rewritten_question_is_what_the_verifier_sees(tmp_path):
    source = write(tmp_path, [row(CHOICES.format(n=5) + "A) 4\nB) 5\nC) 6", "B")])
    (prompt,) = read_prompts([source], []).prompts
    assert prompt.entry == {"question": prompt.prompt, "answer": "5"}


def test_a_reference_that_does_not_verify_is_dropped(tmp_path):
    rows = [
        {"id": f"p{n}", "prompt": ask(n), "answer": answer, "family": "sums",
         "verifier": "reasoning_gym", "entry": {}}
        for n, answer in enumerate(["1", "2"])
    ]  # fmt: skip
    rows.append({**rows[0], "id": "good", "prompt": ask(9), "verifier": "exact_match"})
    rows.append({**rows[2], "id": "gcd", "family": "gcd", "prompt": ask(8),
                 "verifier": "reasoning_gym"})  # fmt: skip
    source = write(tmp_path, rows[2:]).model_copy(update={"format": "prompts"})
    found = read_prompts([source], [])
    assert [p.id for p in found.prompts] == ["good"]
    assert [(p.id, reason) for p, reason in found.dropped] == [("gcd", "unsound")]


def test_an_unknown_verifier_is_refused(tmp_path):
    source = write(tmp_path, [row(ask(1), 3)]).model_copy(update={"verifier": "oracle"})
    with pytest.raises(DataError, match="verifier 'oracle'"):
        read_prompts([source], [])


def test_a_set_without_a_usable_row_says_what_became_of_its_rows(tmp_path):
    source = write(tmp_path, [row("Prove it.", "x"), {"question": "?"}])
    with pytest.raises(DataError, match=r"2 rows, 1 unreadable, first set\.jsonl:2: no answer"):
        read_prompts([source], [])


def test_parquet_and_arrow_hold_prompts_too(tmp_path):
    table = pa.table({"question": [ask(1), ask(2)], "answer": [3, 6], "family": ["a", "b"]})
    pq.write_table(table, tmp_path / "set.parquet")
    with pa.ipc.new_stream(tmp_path / "other.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("set.parquet", "other.arrow"):
        found = read_prompts([PromptSource(name="mine", uri=str(tmp_path / name))], [])
        assert [(p.prompt, p.answer, p.family) for p in found.prompts] == [
            (ask(1), "3", "a"), (ask(2), "6", "b"),
        ]  # fmt: skip


def test_what_a_model_judges_keeps_its_type(tmp_path):
    source = write(tmp_path, [row("Prove that 2 is prime.", "Its divisors are 1 and 2.")])
    found = read_prompts([source.model_copy(update={"judge": "model"})], [])
    assert [(p.judge, p.verifier) for p in found.prompts] == [("model", "consistency")]


def test_a_rule_can_not_be_the_verifier_of_what_a_model_judges():
    with pytest.raises(ValueError, match="name one of consistency, pairwise, or none"):
        PromptSource(name="mine", uri="x", judge="model", verifier="exact_match")


def test_a_whole_prompt_that_a_model_judges_must_name_a_verifier_of_models(tmp_path):
    prompt = {"id": "p", "prompt": "Prove it.", "answer": "So.", "family": "f", "level": 0,
              "entry": {}, "verifier": "exact_match", "judge": "model"}  # fmt: skip
    source = write(tmp_path, [prompt]).model_copy(update={"format": "prompts"})
    with pytest.raises(DataError, match="judged by a model, but names verifier 'exact_match'"):
        read_prompts([source], [])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.builds(lambda n: row(ask(n), 3 * n), st.integers(1, 20)),
            st.sampled_from([row("Prove it.", "x"), row("Is it?", "yes"), {}, [], 3, None]),
        ),
        max_size=15,
    )
)
def test_rows_in_are_prompts_and_dropped_and_quarantined(rows):
    with tempfile.TemporaryDirectory() as name:
        found = read_prompts([write(Path(name), [row(ask(99), 297), *rows])], [])
    total = len(found.prompts) + len(found.dropped) + len(found.quarantined)
    assert found.rows["mine"] == total == len(rows) + 1


class HalfRight:
    """Answers every second sample rightly."""

    def __init__(self, tokenizer, answers):
        self.tokenizer, self.answers = tokenizer, answers

    def generate(self, prompts, samples_per_prompt, settings, seed, progress=None):
        from longstride.rollout.protocol import Sample

        t = self.tokenizer
        groups = []
        for ids in prompts:
            text = t.decode(ids)
            right = next((a for q, a in self.answers.items() if q in text), "0")
            samples = []
            for number in range(samples_per_prompt):
                answer = right if number % 2 else "12345"
                tokens = [t.think_id, *t.encode("so"), t.end_think_id, *t.encode(answer), t.end_id]
                samples.append(Sample(tokens, [-0.5] * len(tokens), "stop"))
            groups.append(samples)
        return groups


def test_a_plan_limits_a_family_and_the_account_names_every_row(prose_folder, tokenizer, tmp_path):
    rows = [row(ask(n), 3 * n, family="lamps") for n in range(1, 31)]
    source = write(tmp_path, [*rows, row("Prove it.", "x", family="lamps"), {}])
    curation = {"candidates": 0, "samples": 4, "sources": [source.model_dump()],
                "plan": {"lamps": 20, "absent": 5}}  # fmt: skip
    stages = [{"window": 2048, "rope_base": 2e4, "tokens": 8_000, "learning_rate": 1e-3}]
    recipe = make_recipe(
        prose_folder, extension=stages, rl={"groups_per_batch": 8, "curation": curation}
    )
    build_chat_examples(recipe, tmp_path / "chat")
    user = user_prompts(recipe, tmp_path / "chat")
    candidates = build_candidates(recipe, tmp_path / "chat", user)
    policy = HalfRight(tokenizer, {p.prompt: p.answer for p in candidates})
    curate(recipe, candidates, policy, tokenizer, tmp_path / "o", window=40, user=user)
    kept = list(read_jsonl(tmp_path / "o" / "prompts.jsonl", RLPrompt))
    summary = read_json(tmp_path / "o" / "summary.json", CurationSummary)
    dropped = json_lines(tmp_path / "o" / "dropped.jsonl")
    assert summary.rows == {"mine": 32}
    assert len(kept) + len(dropped) + summary.quarantined == 32
    assert summary.dropped == {"over_plan": 10, "proof": 1} and len(kept) == 20
    planned = {f: (c.planned, c.kept) for f, c in summary.families.items()}
    assert planned == {"lamps": (20, 20), "absent": (5, 0)}
    assert len(json_lines(tmp_path / "o" / "quarantine.jsonl")) == 1


def prompts(family, count):
    return [
        RLPrompt(id=f"{family}-{n}", prompt="?", answer="!", family=family,
                 verifier="exact_match", entry={})
        for n in range(count)
    ]  # fmt: skip


def history(**rates):
    """Ten judged samples of each prompt."""
    names = {name.replace("_", "-"): rate for name, rate in rates.items()}
    return PassHistory(
        judged=dict.fromkeys(names, 10), passed={n: round(10 * r) for n, r in names.items()}
    )


def second(pool, hard=(), past=None, synthetic=(), seed=3, most=100, **plan):
    values = {"first_round": 2, "synthetic_share": 1.0, "hard": most, **plan}
    return recurate(
        pool, hard, past or PassHistory(), SecondPhase(**values), synthetic=set(synthetic),
        seed=seed,
    )  # fmt: skip


def test_easy_prompts_go_and_unmeasured_ones_stay():
    past = history(math_0=1.0, math_1=0.9, math_2=0.8)
    past.judged["math-3"], past.passed["math-3"] = 3, 3
    found = second(prompts("math", 5), past=past)
    assert [p.id for p in found.prompts] == ["math-2", "math-3", "math-4"]
    assert (found.summary.dropped_easy, found.summary.unmeasured) == (2, 2)


def test_hard_prompts_come_up_to_their_number_and_never_twice():
    pool = prompts("math", 3)
    found = second(pool, [*prompts("code", 10), pool[0]], most=4)
    assert found.summary.families_after == {"code": 4, "math": 3}
    assert found.summary.added_hard == 4


@settings(max_examples=30)
@given(share=st.floats(0.05, 1.0), seed=st.integers(0, 1000))
def test_generated_prompts_are_thinned_to_their_share_and_others_are_not(share, seed):
    pool = prompts("math", 50) + prompts("puzzle", 400)
    found = second(pool, synthetic=["puzzle"], seed=seed, synthetic_share=share)
    after = found.summary.families_after
    assert after["math"] == 50
    assert after.get("puzzle", 0) / 400 == pytest.approx(share, abs=0.12)
    more = second(pool, synthetic=["puzzle"], seed=seed, synthetic_share=min(1.0, share + 0.1))
    assert {p.id for p in found.prompts} <= {p.id for p in more.prompts}
    s = found.summary
    assert s.after == s.before - s.dropped_easy - s.dropped_synthetic


def test_a_second_choice_without_prompts_is_refused_with_the_figures():
    with pytest.raises(DataError, match=r"leaves none of 1 prompts: 1 are easy"):
        second(prompts("math", 1), past=history(math_0=1.0))


def test_a_round_draws_from_the_second_choice_from_its_round_on(prose_folder, tmp_path):
    phase = {"first_round": 3, "hard": 2, "synthetic_share": 1.0}
    recipe = make_recipe(
        prose_folder, rl={"groups_per_batch": 8, "curation": {"second_phase": phase}}
    )
    write_jsonl(tmp_path / "prompts.jsonl", prompts("chain_sum", 4))
    write_jsonl(tmp_path / "hard.jsonl", prompts("hard", 5))
    past = PassHistory(judged={"chain_sum-0": 10}, passed={"chain_sum-0": 10})
    first, none = prompts_of_round(recipe, 2, tmp_path, past)
    assert (len(first), none) == (4, None)
    later, summary = prompts_of_round(recipe, 3, tmp_path, past)
    assert isinstance(summary, RecurationSummary)
    assert summary.families_after == {"chain_sum": 3, "hard": 2}
    assert later == prompts_of_round(recipe, 4, tmp_path, past)[0]


def test_a_phase_that_begins_after_the_last_round_is_refused(prose_folder):
    with pytest.raises(ValueError, match=r"curation\.second_phase would begin after the last"):
        make_recipe(prose_folder, rl={"curation": {"second_phase": {"first_round": 60}}})
