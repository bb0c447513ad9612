"""The length ladder as an artifact that flows round -> gate -> next round."""

from __future__ import annotations

import json
from pathlib import Path

from longstride.errors import DataError
from longstride.gates.ladder import decide, first_state
from longstride.store.artifacts import digest_of_artifact, open_artifact, publish
from longstride.store.files import read_json, read_text, write_json
from schemas.algorithms import CispoConfig
from schemas.ladder import LadderState, RoundFacts
from schemas.recipe import Recipe

LADDER_FILE = "ladder_state.json"
ROLLOUTS_FILE = "rollouts.jsonl"
SUMMARY_FILE = "summary.json"


def start_ladder(recipe: Recipe, out: Path) -> LadderState:
    """Publish the state before round 1: the first window, the recipe's cap and gradient clip."""
    algorithm = recipe.rl.algorithm
    cap = algorithm.is_weight_cap if isinstance(algorithm, CispoConfig) else None
    state = first_state(recipe.ladder, cap, recipe.rl.optimizer.grad_clip)
    _publish(state, recipe, out, parents={})
    return state


def expand_ladder(
    recipe: Recipe, number: int, rollouts: Path, ladder: Path, out: Path
) -> LadderState:
    """Decide after round `number` from its measured facts, and publish the next state.

    Raises:
        DataError: The rollouts have no readable summary.
    """
    measured = open_artifact(rollouts, "rollouts")
    before = open_artifact(ladder, "ladder_state")
    state = read_json(ladder / LADDER_FILE, LadderState)
    path = rollouts / SUMMARY_FILE
    try:
        summary = json.loads(read_text(path))
        facts = None if summary["passed_through"] else RoundFacts(**summary["facts"])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a summary of a round ({error!r}); run it again") from error
    after = decide(state, facts, recipe.ladder, number)
    parents = {"rollouts": digest_of_artifact(measured), "ladder": digest_of_artifact(before)}
    _publish(after, recipe, out, parents)
    return after


def _publish(state: LadderState, recipe: Recipe, out: Path, parents: dict[str, str]) -> None:
    write_json(out / LADDER_FILE, state)
    publish(out, "ladder_state", "ladder", parents=parents, recipe_digest=recipe.digest())
