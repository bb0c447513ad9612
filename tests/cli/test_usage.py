"""Exit codes, refusals and small commands; nothing here trains."""

import json
import os
import subprocess

import pytest
from micro_run import MICRO, command, environment, longstride

from longstride.cli.main import main


def said(capsys, *arguments):
    """Exit code, standard output and standard error of the command in this process."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit_:
        code = exit_.code
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "required: command"),
        (["rum"], "invalid choice: 'rum'"),
        (["check"], "required: recipe"),
        (["check", "tinny"], "no recipe 'tinny'"),
        (["check", "tiny", "--set", "rl.group_size=1"], "rl.group_size"),
        (["check", "tiny", "--set", "quality.thresholds={E1/nothing: 1}"], "E1/nothing"),
        (["compile", "tiny", "--set", "rl.rounds"], "field.subfield=value"),
        (["run", "tiny", "--set", "seed=seven"], "'seven'"),
        (["run", "tiny", "--cpus", "many"], "argument --cpus: 'many' is not"),
        (["run", "tiny", "--run-id", "../up"], "'../up' is not a name"),
        (["resume"], "required: run_dir"),
        (["resume", "nowhere"], "there is no run 'nowhere'"),
        (["stop", "nowhere"], "there is no run 'nowhere'"),
        (["report", "nowhere"], "there is no run 'nowhere'"),
        (["override", "nowhere", "E1/corpus", "--by", "ada", "--reason", "x"], "no run 'nowhere'"),
        (["override", "nowhere", "E1/corpus"], "required: --by, --reason"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_exits_with_2_and_names_the_mistake(
    capsys, tmp_path, monkeypatch, arguments, told
):
    monkeypatch.chdir(tmp_path)
    code, output, errors = said(capsys, *arguments)
    assert (code, output) == (2, "")
    assert told in errors and "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_recipe_file_is_named(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_bytes(b"name: \xff\n")
    code, _, errors = said(capsys, "check", tmp_path / "mine.yaml")
    assert code != 0 and "mine.yaml is not valid UTF-8" in errors


def test_check_prints_the_plan_and_starts_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output, errors = said(capsys, "check", MICRO, "--set", "rl.rounds=3")
    assert (code, errors) == (0, "")
    assert "parameters" in output and "FLOPs" in output and "3 rounds" in output
    assert "24 -> 32 -> 40 tokens" in output
    for stage in ("pretrain", "extend-1", "extend-2"):
        assert f"\n{stage}" in output
    for edge in ("E1", "E2", "E3", "E4", "E5", "E7", "E8"):
        assert f"\n  {edge} " in output
    assert list(tmp_path.iterdir()) == []


def test_check_shows_the_memory_of_each_task_and_what_does_not_fit(capsys):
    _, output, _ = said(capsys, "check", MICRO)
    lines = [line.split() for line in output.splitlines()]
    assert ["sft", "3Gi"] in [[words[0], words[3]] for words in lines if len(words) > 6]
    assert "problem:" not in output
    _, output, _ = said(capsys, "check", MICRO, "--set", "resources.benchmark.memory=200Mi")
    (problem,) = [line for line in output.splitlines() if "problem:" in line]
    assert "benchmark needs about 0." in problem and "limit memory=200Mi" in problem


def test_check_shows_the_threshold_of_the_recipe_and_not_the_default(capsys):
    _, output, _ = said(capsys, "check", MICRO)
    (line,) = [line for line in output.splitlines() if "zero_spread" in line]
    assert line.split()[-1] == "1"


def test_check_writes_the_resolved_recipe(capsys, tmp_path):
    path = tmp_path / "resolved.json"
    code, output, _ = said(capsys, "check", MICRO, "--resolved", path)
    assert code == 0 and str(path) in output
    assert json.loads(path.read_text())["name"] == "micro"


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore::FutureWarning")
def test_compile_writes_ir_that_lints_clean(capsys, tmp_path):
    from pipelines.compiling import lint

    path = tmp_path / "out" / "ir.yaml"
    code, output, _ = said(capsys, "compile", MICRO, "-o", path)
    text = path.read_text()
    assert (code, output) == (0, f"{path} ({len(text.encode())} bytes)\n")
    assert lint(text) == []
    assert os.listdir(path.parent) == ["ir.yaml"]


def test_a_run_id_that_is_taken_is_refused(micro):
    before = (micro.folder.path / "state.sqlite").read_bytes()
    done = longstride("run", MICRO, "--runs", micro.runs, "--run-id", "base")
    assert done.returncode == 2 and done.stdout == ""
    assert f"{micro.folder.path} exists already; choose another --run-id" in done.stderr
    assert (micro.folder.path / "state.sqlite").read_bytes() == before


def test_runs_are_listed_with_state_and_name(capsys, micro, tmp_path):
    code, output, _ = said(capsys, "runs", "--runs", micro.runs)
    assert code == 0
    assert [line.split()[2:4] for line in output.splitlines() if line.endswith("base")] == [
        ["SUCCEEDED", "base"]
    ]
    assert said(capsys, "runs", "--runs", tmp_path)[:2] == (0, f"no runs in {tmp_path}\n")


def test_a_report_can_be_written_again_elsewhere(capsys, micro, tmp_path):
    code, output, _ = said(capsys, "report", "base", "--runs", micro.runs, "-o", tmp_path / "r")
    assert (code, output) == (0, f"{tmp_path / 'r'}\n")
    assert "<html" in (tmp_path / "r").read_text()


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        ("E1/corpus", "does not block this run; blocked gates: none"),
        ("corpus", "is not the name of a gate; write edge/stage"),
        ("E9/corpus", "is not the name of a gate; write edge/stage"),
    ],
)
def test_a_gate_that_does_not_block_cannot_be_overridden(capsys, micro, gate, told):
    words = ("--by", "Ada", "--reason", "why not")
    code, output, errors = said(capsys, "override", "base", "--runs", micro.runs, gate, *words)
    assert (code, output) == (2, "")
    assert f"'{gate}' {told}" in errors
    assert not (micro.folder.path / "overrides").exists()


def test_secrets_that_cannot_be_read_are_named(capsys, micro):
    code, _, errors = said(capsys, "resume", micro.folder.path, "--secrets", "no.json")
    assert code == 2 and "--secrets no.json cannot be read" in errors


@pytest.mark.parametrize("arguments", [["check", MICRO], ["runs"]], ids=lambda words: words[0])
def test_a_reader_that_leaves_early_causes_no_noise(micro, arguments):
    extra = ["--runs", micro.runs] if arguments == ["runs"] else []
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command(*arguments, *extra),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    os.close(writing)
    assert done.stderr == ""
