"""`longstride calibrate-judge` against a real endpoint."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "rewards" / "generative"))

from scripted_judge import PROBLEM, REFERENCE, honest, listing, refuses, served

from longstride.cli.main import main


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "labelled.jsonl"
    path.write_text(
        "".join(
            json.dumps({
                "id": str(n), "prompt_id": "p", "prompt": PROBLEM, "reference": REFERENCE,
                "answer": listing(n), "label": label, "correct": n == 11,
            }) + "\n"
            for n, label in ((1, 1), (6, 3), (11, 5))
        )
    )  # fmt: skip
    return path


def calibrate(server, rows, out):
    judge = [f"rewards.model.url={server.url}", "rewards.model.model=judge"]
    judge.append("rewards.model.limits.backoff_seconds=0.01")
    sets = [text for value in judge for text in ("--set", value)]
    return main(["calibrate-judge", str(rows), "--recipe", "tiny", *sets, "-o", str(out)])


def test_it_prints_and_writes_a_report_and_pays_for_a_verdict_once(rows, tmp_path, capsys):
    with served(honest) as server:
        assert calibrate(server, rows, tmp_path / "out") == 0
        shown = capsys.readouterr().out
        assert calibrate(server, rows, tmp_path / "out") == 0
        assert server.calls == 3
    assert "| quadratic kappa | 1.000 |" in shown
    assert shown.rstrip().endswith("calibration.md")
    assert (tmp_path / "out" / "calibration.json").is_file()


def test_a_judge_that_judges_nothing_is_a_failure(rows, tmp_path, capsys):
    with served(refuses) as server:
        assert calibrate(server, rows, tmp_path / "out") == 1
    assert "not judged: 3 malformed" in capsys.readouterr().out


def test_a_recipe_without_a_judge_says_what_to_set(rows, tmp_path, capsys):
    assert main(["calibrate-judge", str(rows), "--recipe", "tiny", "-o", str(tmp_path)]) == 2
    assert "set rewards.model.url and rewards.model.model" in capsys.readouterr().err
