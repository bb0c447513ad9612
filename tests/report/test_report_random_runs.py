from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from page_parts import read_page

from longstride.report import render_report
from schemas.ladder import LadderEntry, LadderState, RoundFacts
from schemas.rows import EvalResult, EvalSample, Interval, Rollout
from schemas.run import Evaluation, MetricPoint, RunRecord, TaskMetrics, TaskRecord
from schemas.verdict import Check, Verdict

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = TEXT.filter(bool)
REAL = st.floats(allow_nan=False, allow_infinity=False)
TIME = st.none() | st.floats(0, 4e9) | REAL
SHARE = st.floats(0, 1)
POSITIVE = st.floats(1e-300, 1e300)
FINISH = st.sampled_from(["stop", "length", "repetition"])
STATES = ["PENDING", "RUNNING", "SUCCEEDED", "SKIPPED", "FAILED", "CANCELING", "CANCELED"]
PATHS = st.sampled_from(["root", "root/a", "root/b", "root/a/x", "root/a/gate-e1", "lost", ""])

task = st.builds(
    TaskRecord, path=PATHS, display_name=TEXT, parent=st.none() | PATHS, kind=TEXT,
    state=st.sampled_from(STATES), depends_on=st.lists(PATHS | TEXT, max_size=3), started_at=TIME,
    finished_at=TIME, attempts=st.integers(0, 3), cache_hit=st.booleans(), cpu_seconds=TIME,
    peak_memory_bytes=st.none() | st.integers(0, 2**60), error=st.none() | TEXT,
    artifacts=st.dictionaries(TEXT, TEXT, max_size=2),
)  # fmt: skip
check = st.builds(
    Check, name=NAME, description=TEXT, severity=st.sampled_from(["block", "warn", "info"]),
    passed=st.booleans(), observed=REAL | st.integers() | TEXT | st.booleans() | st.none(),
    threshold=TEXT, offenders=st.lists(TEXT, max_size=4), origin=TEXT,
)  # fmt: skip
verdict = st.builds(
    Verdict, edge=st.sampled_from(["E1", "E5", "E8"]), stage=TEXT, passed=st.booleans(),
    checks=st.lists(check, max_size=4), rows=st.integers(0), suite_digest=TEXT,
    subject_digest=TEXT, note=TEXT, override=st.none(),
)  # fmt: skip
facts = st.builds(
    RoundFacts, window=st.integers(1), perplexity_first=POSITIVE, perplexity_last=POSITIVE,
    perplexity_head=POSITIVE, perplexity_tail=POSITIVE, length_p50=st.floats(0, 1e300),
    length_p99=st.floats(0, 1e300), length_p99_correct=st.none(), length_p99_wrong=st.none(),
    truncated_share=SHARE, repetition_share=SHARE, reward_mean=REAL, samples=st.integers(1),
)  # fmt: skip
entry = st.builds(
    LadderEntry, round=st.integers(1, 99), window=st.integers(1, 10**9), facts=st.none() | facts,
    decision=st.sampled_from(["expand", "hold", "remedy", "halt", "complete", "passed_through"]),
    reasons=st.lists(TEXT, max_size=2),
)  # fmt: skip
ladder = st.builds(LadderState, window=st.integers(1), grad_clip=POSITIVE,
                   history=st.lists(entry, max_size=4))  # fmt: skip
point = st.builds(
    MetricPoint, step=st.integers(0, 10**12), value=REAL | SHARE,
    name=st.sampled_from(["train/loss", "rl/length/p99", "rl/window", "rl/accuracy", "x"]) | TEXT,
)  # fmt: skip
metrics = st.builds(TaskMetrics, task=PATHS, stage=TEXT, points=st.lists(point, max_size=6))
interval = st.builds(Interval, mean=REAL, low=REAL, high=REAL, problems=st.integers(0, 3),
                     samples=st.integers(0))  # fmt: skip
result = st.builds(
    EvalResult, label=TEXT, checkpoint_digest=TEXT, samples_per_problem=st.just(4),
    temperature=SHARE, top_p=SHARE, window=st.just(8), prompt_set_digest=st.sampled_from("ab"),
    verifier_version=TEXT, average=interval, by_family=st.dictionaries(TEXT, interval, max_size=2),
    by_level=st.dictionaries(TEXT, interval, max_size=2), length_p50=REAL, length_p99=REAL,
    truncated_share=REAL, unjudged_share=REAL,
    problem_means=st.dictionaries(st.sampled_from("pqr"), SHARE, max_size=3),
)  # fmt: skip
sample = st.builds(EvalSample, prompt_id=st.sampled_from("pqr"), family=TEXT, level=st.integers(),
                   sample=st.integers(0), correct=st.none() | st.booleans(), length=st.integers(0),
                   finish_reason=FINISH, text=TEXT)  # fmt: skip
evaluation = st.builds(Evaluation, result=result, samples=st.lists(sample, max_size=3))


@st.composite
def rollout(draw) -> Rollout:
    tokens = draw(st.lists(st.integers(0, 9), max_size=5))
    return Rollout(
        prompt_id=draw(TEXT), group=0, sample=0, batch=0, prompt_tokens=[1, 2], tokens=tokens,
        logprobs=[draw(st.none() | REAL) for _ in tokens], text="", finish_reason=draw(FINISH),
        importance_weights=draw(st.lists(REAL, max_size=5)), reward=draw(st.none() | REAL),
        rewards=draw(st.dictionaries(TEXT, REAL, max_size=2)), window=8,
        correct=draw(st.none() | st.booleans()), advantage=draw(st.none() | REAL),
    )  # fmt: skip


json_value = st.recursive(
    st.none() | st.booleans() | REAL | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
run = st.builds(
    RunRecord, run_id=TEXT, name=TEXT, state=TEXT | st.sampled_from(STATES), started_at=TIME,
    finished_at=TIME, error=st.none() | TEXT, tasks=st.lists(task, max_size=7),
    verdicts=st.lists(verdict, max_size=3), ladder=st.none() | ladder,
    metrics=st.lists(metrics, max_size=3), evaluations=st.lists(evaluation, max_size=3),
    rollouts=st.dictionaries(TEXT, st.lists(rollout(), max_size=3), max_size=2),
    tokens=st.dictionaries(st.sampled_from("0123"), TEXT),
    recipe=st.dictionaries(TEXT | st.sampled_from(["provenance", "rl"]), json_value, max_size=3),
    versions=st.dictionaries(TEXT, TEXT, max_size=2),
    machine=st.dictionaries(TEXT, TEXT, max_size=2),
    recipe_digest=TEXT, code_digest=TEXT,
)  # fmt: skip


@settings(
    max_examples=100, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(run)
def test_any_record_gives_a_well_formed_page(record):
    page = render_report(record)
    assert read_page(page).all("main")
    page.encode()
    assert "NaN" not in page.split("<main>")[1].split("<script>")[0] or "NaN" in repr(record)
