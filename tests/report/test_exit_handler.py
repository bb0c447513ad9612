"""The report of the exit handler, where there is no executor state to read."""

import fsspec
import pytest

from longstride.report.exit_handler import RUN_DIRECTORY_VARIABLE, report_from_exit_handler
from schemas.verdict import Check, Verdict

VERDICT = Verdict(
    edge="E1", stage="corpus", passed=False, rows=3, suite_digest="s", subject_digest="d",
    checks=[Check(name="duplicates", description="Exact duplicates.", severity="block",
                  passed=False, observed=0.4, threshold="<= 0.001", offenders=["doc-17"])],
)  # fmt: skip


@pytest.fixture(autouse=True)
def outside_an_executor(monkeypatch):
    monkeypatch.delenv(RUN_DIRECTORY_VARIABLE, raising=False)


def write_run(folder, open_):
    with open_(f"{folder}/quality-gate/verdict/verdict.json") as stream:
        stream.write(VERDICT.model_dump_json())
    with open_(f"{folder}/train/metrics/metrics.jsonl") as stream:
        stream.write('{"step": 0, "name": "train/loss", "value": 3.25, "time": 1.0}\n')


def assert_tells_the_story(page):
    assert "E1" in page and "duplicates" in page and "doc-17" in page
    assert "&lt;= 0.001" in page
    assert "3.25" in page


def test_an_error_that_no_gate_explains_is_shown_as_it_is(tmp_path):
    (tmp_path / "root").mkdir()
    out = tmp_path / "report"
    report_from_exit_handler(f"{tmp_path}/root", state="FAILED", error="OSError: full", out=out)
    assert "OSError: full" in out.read_text()


def test_a_run_on_a_mounted_store_is_reported_from_its_artifacts(tmp_path):
    def open_(name):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w")

    write_run("root", open_)
    out = tmp_path / "report"
    report_from_exit_handler(
        f"file://{tmp_path}/root", state="FAILED", error="QualityGateBlocked: E1", out=out
    )
    assert_tells_the_story(out.read_text())


def test_a_run_on_a_remote_store_is_reported_from_a_copy_of_its_small_files(tmp_path):
    files = fsspec.filesystem("memory")
    write_run("/bucket/run-1", lambda name: files.open(name, "w"))
    files.pipe("/bucket/run-1/train/checkpoint/model.safetensors", b"x" * 100)
    out = tmp_path / "report"
    report_from_exit_handler(
        "memory://bucket/run-1", state="FAILED", error="QualityGateBlocked: E1", out=out
    )
    assert_tells_the_story(out.read_text())
