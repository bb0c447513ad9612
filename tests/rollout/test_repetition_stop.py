import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.rollout.stopping import extend_runs, repetition_stop

ORACLES = Path(__file__).parents[1] / "oracles" / "rl_oracles.json"
CASE: dict[str, Any] = next(
    case
    for case in json.loads(ORACLES.read_text(encoding="utf-8"))["cases"]
    if case["id"] == "14_repetition_stop"
)


def stream_of(segments: list[list[float]]) -> torch.Tensor:
    return torch.cat([torch.full((int(count),), prob) for prob, count in segments])


@pytest.mark.parametrize("stream", CASE["inputs"]["streams"], ids=lambda stream: stream["name"])
def test_the_rule_stops_where_the_oracle_says(stream: dict[str, Any]) -> None:
    run = stream.get("run", CASE["inputs"]["run"])
    got = repetition_stop(stream_of(stream["segments"]), run, CASE["inputs"]["threshold"])
    assert got == CASE["expected"]["stop_after_tokens"][stream["name"]]


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.2, 0.99, 0.995, 1.0]), max_size=30), st.integers(1, 5))
def test_counting_token_by_token_stops_at_the_same_place(probs: list[float], run: int) -> None:
    runs, fired = torch.zeros(1, dtype=torch.int64), None
    for index, prob in enumerate(probs):
        runs = extend_runs(runs, torch.tensor([prob]), 0.99)
        if fired is None and runs.item() >= run:
            fired = index + 1
    assert repetition_stop(torch.tensor(probs), run, 0.99) == fired


def test_a_run_of_zero_turns_the_rule_off() -> None:
    assert repetition_stop(torch.ones(50), 0, 0.99) is None
