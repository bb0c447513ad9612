"""The gate as a whole: what it writes, what it raises, and what it says."""

import json
import shutil

import pytest
from quality_parts import make_rollouts, write_rollouts

from longstride.errors import GateCouldNotRun, QualityGateBlocked, RecipeError
from longstride.quality.gate import run_gate
from longstride.quality.page import verdict_page
from longstride.store.artifacts import open_artifact, publish
from schemas.verdict import Check, Override, Verdict


def unequal(tmp_path):
    rollouts = make_rollouts()
    rollouts[0].logprobs[2] = None
    return write_rollouts(tmp_path / "rollouts", rollouts)


def verdict_of(folder):
    return Verdict.model_validate_json((folder / "verdict.json").read_text())


def test_a_blocked_gate_writes_its_verdict_and_then_names_check_value_and_rule(parts, tmp_path):
    out = tmp_path / "v"
    with pytest.raises(QualityGateBlocked) as raised:
        run_gate("E5", "rl-3", parts.recipe, unequal(tmp_path), None, out)
    told = str(raised.value)
    assert "E5 (rollouts -> next round) blocks stage 'rl-3'" in told
    assert "logprobs_finite is 0.04167, must be 0 rows break `logprobs_missing <= 0`" in told
    assert "batch 0 group 0 sample 0" in told
    verdict = verdict_of(out)
    assert not verdict.passed
    assert [check.name for check in verdict.blocked_by] == ["logprobs_finite"]
    open_artifact(out, "verdict")


def test_an_override_lets_it_pass_and_is_on_record(parts, tmp_path):
    override = Override(operator="ada", reason="one token of 600")
    verdict = run_gate(
        "E5", "rl-3", parts.recipe, unequal(tmp_path), None, tmp_path / "v",
        html=tmp_path / "page", override=override,
    )  # fmt: skip
    assert verdict.passed
    assert verdict_of(tmp_path / "v").override == override
    page = (tmp_path / "page").read_text()
    assert "overridden" in page and "one token of 600" in page


def test_a_recipe_can_loosen_a_threshold(parts, tmp_path):
    recipe = parts.recipe.model_copy(deep=True)
    rollouts = [r.model_copy(update={"reward": 1.0, "rewards": {}}) for r in make_rollouts()]
    path = write_rollouts(tmp_path / "rollouts", rollouts)
    with pytest.raises(QualityGateBlocked, match=r"zero_spread is 1, must be <= 0\.8"):
        run_gate("E5", "rl-1", recipe, path, None, tmp_path / "a")
    recipe.quality.thresholds = {"E5/zero_spread": 1.0}
    assert run_gate("E5", "rl-1", recipe, path, None, tmp_path / "b").passed


def test_an_unknown_threshold_is_refused_before_anything_is_measured(parts, tmp_path):
    recipe = parts.recipe.model_copy(deep=True)
    recipe.quality.thresholds = {"E5/zero_spred": 1.0}
    with pytest.raises(RecipeError, match="zero_spred"):
        run_gate("E5", "rl-1", recipe, parts["rollouts"], None, tmp_path / "v")
    assert not (tmp_path / "v").exists()


def test_a_round_that_was_passed_through_passes_without_checks(parts, tmp_path):
    path = write_rollouts(tmp_path / "rollouts", [], passed_through=True)
    verdict = run_gate("E5", "rl-6", parts.recipe, path, None, tmp_path / "v")
    assert verdict.passed and verdict.checks == []
    assert "passed through" in verdict.note


def ruin(kind):
    def truncate(path):
        data = (path / "rollouts.jsonl").read_bytes()
        (path / "rollouts.jsonl").write_bytes(data[:-40])

    def unpublish(path):
        (path / "manifest.json").unlink()

    def schema(path):
        rows = (path / "rollouts.jsonl").read_text().splitlines()
        rows[4] = json.dumps(json.loads(rows[4]) | {"window": "wide"})
        (path / "rollouts.jsonl").write_text("\n".join(rows) + "\n")
        publish(path, "rollouts", "rl-1")

    def unequal_lengths(path):
        rows = (path / "rollouts.jsonl").read_text().splitlines()
        row = json.loads(rows[1])
        rows[1] = json.dumps(row | {"logprobs": row["logprobs"][:-1]})
        (path / "rollouts.jsonl").write_text("\n".join(rows) + "\n")
        publish(path, "rollouts", "rl-1")

    def encoding(path):
        data = (path / "rollouts.jsonl").read_bytes().split(b"\n")
        data[2] = data[2].replace(b"think", b"\xff\xfe", 1)
        (path / "rollouts.jsonl").write_bytes(b"\n".join(data))
        publish(path, "rollouts", "rl-1")

    def empty(path):
        (path / "rollouts.jsonl").write_text("")
        publish(path, "rollouts", "rl-1")

    def other_kind(path):
        publish(path, "documents", "corpus")

    return locals()[kind]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("truncate", r"rollouts\.jsonl has \d+ bytes, manifest\.json says \d+"),
        ("unpublish", r"has no manifest\.json"),
        ("schema", r"rollouts\.jsonl, line 5 .*window"),
        ("unequal_lengths", r"rollouts\.jsonl, line 2 .*tokens but \d+ log-probabilities"),
        ("encoding", r"rollouts\.jsonl, line 3"),
        ("empty", r"rollouts\.jsonl holds no rollouts"),
        ("other_kind", "holds a documents artifact"),
    ],
)
def test_a_corrupt_subject_is_refused_by_file_and_row(parts, tmp_path, kind, told):
    path = shutil.copytree(parts["rollouts"], tmp_path / "rollouts")
    ruin(kind)(path)
    with pytest.raises(QualityGateBlocked, match=told):
        run_gate("E5", "rl-1", parts.recipe, path, None, tmp_path / "v")
    (check,) = verdict_of(tmp_path / "v").checks
    assert (check.name, check.severity, check.passed) == ("readable", "block", False)


def test_nobody_can_override_a_subject_that_cannot_be_read(parts, tmp_path):
    override = Override(operator="ada", reason="it will do")
    with pytest.raises(QualityGateBlocked):
        run_gate("E5", "rl-1", parts.recipe, tmp_path / "nothing", None, tmp_path / "v",
                 override=override)  # fmt: skip


def test_weights_that_are_not_numbers_are_refused_by_tensor(parts, checkpoints, tmp_path):
    from poison_checkpoints import nan, remake

    first, trained = checkpoints
    path = remake(trained, tmp_path / "c", tensors=nan)
    with pytest.raises(QualityGateBlocked, match=r"tensors_finite .*blocks\.0\.mlp\.w13"):
        run_gate("E7", "pretrain", parts.recipe, path, first, tmp_path / "v")


@pytest.mark.parametrize("edge", ["E1", "E2", "E3", "E4", "E8"])
def test_a_missing_reference_could_not_run(parts, tmp_path, edge):
    subject = {"E1": "documents", "E2": "pretrain", "E3": "sft", "E4": "prompts", "E8": "after"}
    with pytest.raises(GateCouldNotRun, match="to measure against"):
        run_gate(edge, "pretrain", parts.recipe, parts[subject[edge]], None, tmp_path / "v")
    assert not (tmp_path / "v").exists()


def test_a_broken_reference_says_nothing_about_the_subject(parts, tmp_path):
    reference = shutil.copytree(parts["tokenizer"], tmp_path / "tokenizer")
    (reference / "tokenizer.json").write_text("{}")
    with pytest.raises(GateCouldNotRun, match=r"reference cannot be used.*tokenizer\.json"):
        run_gate("E2", "pretrain", parts.recipe, parts["pretrain"], reference, tmp_path / "v")


def test_a_stage_that_the_recipe_lacks_could_not_run(parts, tmp_path):
    with pytest.raises(GateCouldNotRun, match="no stage 'extend-9'"):
        run_gate("E2", "extend-9", parts.recipe, parts["extend-1"], parts["tokenizer"],
                 tmp_path / "v")  # fmt: skip


def test_an_edge_without_a_suite_could_not_run(parts, tmp_path):
    with pytest.raises(GateCouldNotRun, match="E6 has no suite"):
        run_gate("E6", "ladder", parts.recipe, parts["rollouts"], None, tmp_path / "v")


def test_a_verdict_that_cannot_be_written_could_not_run(parts, tmp_path):
    (tmp_path / "v").write_text("a file, where a folder should be")
    with pytest.raises(GateCouldNotRun, match="could not be written"):
        run_gate("E5", "rl-1", parts.recipe, parts["rollouts"], None, tmp_path / "v")


def test_equal_input_gives_an_equal_verdict(parts, tmp_path):
    for name in ("a", "b"):
        run_gate("E5", "rl-1", parts.recipe, parts["rollouts"], None, tmp_path / name)
    for file in ("verdict.json", "report.html", "manifest.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def hostile():
    check = Check(
        name="duplicates", description="<b>bold</b>", severity="block", passed=False,
        observed="<img src=x>", threshold="<= 1", offenders=["<script>alert(1)</script>"],
        origin="a & b",
    )  # fmt: skip
    return Verdict(
        edge="E1", stage="<i>", passed=False, checks=[check], rows=1, suite_digest="s",
        subject_digest="d", note="</p><script>", override=Override(operator="<u>", reason="<s>"),
    )  # fmt: skip


def test_the_page_escapes_everything_that_came_from_data():
    page = verdict_page(hostile(), "<em>name")
    for markup in ("<script", "<img", "<b>bold", "<i>", "<u>", "<s>", "<em>"):
        assert markup not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_page_stands_alone_and_shows_value_and_rule():
    page = verdict_page(hostile(), "documents")
    assert "http" not in page and "src=" not in page.replace("&lt;img src=x&gt;", "")
    assert "&lt;= 1" in page and "blocks" in page
