"""The expansion gate: expand, hold, remedy or halt, from the round's measured facts."""

from kfp import dsl

from components.base import component


@component
def expansion_gate(
    code_digest: str,
    number: int,
    recipe: dsl.Input[dsl.Artifact],
    rollouts: dsl.Input[dsl.Dataset],
    ladder: dsl.Input[dsl.Artifact],
    next_ladder: dsl.Output[dsl.Artifact],
) -> None:
    """Decide the window of the next round."""
    from pathlib import Path

    from longstride.recipe.resolved import open_recipe
    from longstride.training.ladder import expand_ladder

    state = expand_ladder(
        open_recipe(recipe.path),
        number,
        Path(rollouts.path),
        Path(ladder.path),
        Path(next_ladder.path),
    )
    decision = state.history[-1]
    print(f"round {number}: {decision.decision}; " + "; ".join(decision.reasons))
    next_ladder.metadata.update(
        {"window": state.window, "status": state.status, "decision": decision.decision}
    )
