"""Every edge passes an honest artifact through the whole gate, Great Expectations included."""

import json

import pytest
from quality_parts import (
    judge,
    make_rollouts,
    measure,
    measured_rows,
    write_rollouts,
    write_rows,
)

from longstride.errors import QualityGateBlocked
from longstride.quality.frame import Measured
from longstride.quality.gate import run_gate
from longstride.quality.profile import make_profile
from longstride.quality.run_suite import run_suite
from longstride.quality.suites import load_suite, resolve

CASES = [
    ("E1", "corpus", "documents", "tokenizer"),
    ("E2", "pretrain", "pretrain", "tokenizer"),
    ("E2", "extend-1", "extend-1", "tokenizer"),
    ("E3", "sft", "sft", "chat"),
    ("E4", "rl-prompts", "prompts", "chat"),
    ("E5", "rl-1", "rollouts", None),
    ("E8", "benchmark", "after", "before"),
]


@pytest.mark.parametrize(("edge", "stage", "subject", "reference"), CASES)
def test_an_honest_artifact_passes(parts, tmp_path, edge, stage, subject, reference):
    against = parts[reference] if reference else None
    verdict = run_gate(edge, stage, parts.recipe, parts[subject], against, tmp_path / "v")
    assert verdict.passed
    assert not [check.name for check in verdict.checks if not check.passed]
    assert len(verdict.checks) == len(load_suite(edge).checks)
    assert verdict.rows > 0
    assert json.loads((tmp_path / "v" / "verdict.json").read_text())["edge"] == edge


def test_an_honest_checkpoint_passes_with_and_without_parent(parts, checkpoints, tmp_path):
    first, trained = checkpoints
    assert run_gate("E7", "initialise", parts.recipe, first, None, tmp_path / "a").passed
    verdict = run_gate("E7", "pretrain", parts.recipe, trained, first, tmp_path / "b")
    assert [check.name for check in verdict.checks if not check.passed] == []
    observed = {check.name: check.observed for check in verdict.checks}
    assert observed["perplexity_against_parent"] == pytest.approx(0.36787944117)
    assert observed["tokens_not_lost"] == 1_000


@pytest.mark.parametrize(("edge", "stage", "subject", "reference"), CASES)
def test_great_expectations_and_an_independent_judge_agree_on_a_ruined_frame(
    parts, tmp_path, edge, stage, subject, reference
):
    """Every measured column is ruined at once; both judges must fail the same checks."""
    against = parts[reference] if reference else None
    found = measure(edge, stage, parts.recipe, parts[subject], against, tmp_path)
    suite = resolve(load_suite(edge), parts.recipe)
    rows, kinds = measured_rows(found), found.rows.columns
    for row in (*rows[::2], found.summary):
        for name, value in row.items():
            if isinstance(value, bool):
                row[name] = not value
            elif isinstance(value, int | float):
                row[name] = -5 if value > 0 else 7
    for row in rows:
        row["id"] = "same"
    ruined = Measured(write_rows(tmp_path / "ruined.parquet", rows, kinds), found.summary)
    profile = make_profile(edge, stage, parts.recipe, "sha256:0", ruined)
    outcome = {check.name: check.passed for check in run_suite(suite, ruined, 3, profile)}
    assert {n: p for n, p in outcome.items() if n in judge(suite, ruined)} == judge(suite, ruined)
    failed = [name for name, passed in outcome.items() if not passed]
    assert len(failed) > len(outcome) // 2


def test_offenders_are_limited_by_the_recipe(parts, tmp_path):
    recipe = parts.recipe.model_copy(deep=True)
    recipe.quality.offenders = 2
    rollouts = [r.model_copy(update={"prompt_tokens": [399_999]}) for r in make_rollouts()]
    path = write_rollouts(tmp_path / "rollouts", rollouts)
    with pytest.raises(QualityGateBlocked):
        run_gate("E5", "rl-1", recipe, path, None, tmp_path / "v")
    verdict = json.loads((tmp_path / "v" / "verdict.json").read_text())
    (check,) = [check for check in verdict["checks"] if check["name"] == "tokens_in_vocabulary"]
    assert check["offenders"] == [f"batch 0 group 0 sample {sample}" for sample in (0, 1)]
