"""`longstride quality` on files of a user's own, and its exit codes."""

import json

import pytest

from longstride.cli.main import main
from longstride.cli.quality import BLOCKED, COULD_NOT_RUN, PASSED, edge_of
from longstride.errors import UsageError
from schemas.rows import Rollout


def rollout(group, sample, **changes):
    right = sample < 2
    values = {
        "prompt_id": f"p{group}", "family": "sums", "group": group, "sample": sample, "batch": 0,
        "prompt_tokens": [3], "tokens": [9, 10 + sample, 12], "logprobs": [-0.1, -0.9, -0.4],
        "trainer_logprobs": [-0.1, -0.9, -0.4], "text": "9", "finish_reason": "stop",
        "reward": float(right), "correct": right, "window": 8,
    }  # fmt: skip
    return Rollout.model_validate({**values, **changes})


def write(path, **changes):
    rows = [rollout(g, s, **changes) for g in range(2) for s in range(4)]
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.Table.from_pylist([{**row.model_dump(), "rewards": None} for row in rows])
        parquet.write_table(table.drop_columns(["rewards"]), path)
    else:
        path.write_text("".join(row.model_dump_json() + "\n" for row in rows))
    return path


def run(path, tmp_path, *more):
    settings = ["--set", "rl.group_size=4", "--set", "rl.updates_per_batch=1"]
    return main(["quality", str(path), "--edge", "rollouts", "--out", str(tmp_path / "out"),
                 *settings, *more])  # fmt: skip


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.parquet"])
def test_a_clean_file_of_ones_own_passes(tmp_path, capsys, name):
    assert run(write(tmp_path / name), tmp_path) == PASSED
    assert "passed on 8 rows" in capsys.readouterr().out
    assert (tmp_path / "out/report.html").is_file()


def test_a_fault_blocks_and_names_check_and_rows(tmp_path, capsys):
    path = write(tmp_path / "mine.jsonl", logprobs=[-0.1, None, -0.4])
    assert run(path, tmp_path, "--json") == BLOCKED
    told = json.loads(capsys.readouterr().out)
    assert told["outcome"] == "blocked" and "logprobs_finite" in told["problem"]
    failed = [c["name"] for c in told["verdict"]["checks"] if not c["passed"]]
    assert "logprobs_finite" in failed


def test_a_missing_reference_could_not_be_checked(tmp_path, capsys):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"id": "a", "text": "b", "domain": "book", "source": "s"}\n')
    code = main(["quality", str(path), "--edge", "E1", "--out", str(tmp_path / "out")])
    assert code == COULD_NOT_RUN
    assert "could not check" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--edge", "E9"], "no edge 'E9'"),
        (["--edge", "packed"], "is a file, but a packed artifact is a folder"),
    ],
)
def test_wrong_usage_is_told_apart(tmp_path, capsys, arguments, told):
    assert main(["quality", str(write(tmp_path / "mine.jsonl")), *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("E3", ("E3", "sft")), ("e5", ("E5", "rl-1")), ("sft", ("E3", "sft")),
     ("extend-2", ("E2", "extend-2")), ("E1", ("E1", "corpus"))],
)  # fmt: skip
def test_edges_go_by_number_and_by_word(text, expected):
    assert edge_of(text) == expected


def test_e6_is_no_edge_of_data():
    with pytest.raises(UsageError):
        edge_of("E6")
