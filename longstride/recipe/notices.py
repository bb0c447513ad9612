"""What a recipe asks for that is allowed and yet most likely not meant, in sentences."""

from __future__ import annotations

from schemas.recipe import Recipe


def notices(recipe: Recipe) -> list[str]:
    """Settings that cannot have their usual effect."""
    found = []
    rl = recipe.rl
    if rl.updates_per_batch == 1 and getattr(rl.algorithm, "anchor", "old") == "old":
        found.append(
            "rl.updates_per_batch=1 with the old policy as the anchor: every ratio is 1, so "
            f"{rl.algorithm.kind} is plain REINFORCE and no cap or clip ever binds; take more "
            "updates a batch, or set rl.algorithm.anchor=rollout"
        )
    remedied = recipe.ladder.remedy_cap_factor
    if remedied != 1.0 and not hasattr(rl.algorithm, "is_weight_cap"):
        found.append(
            f"ladder.remedy_cap_factor={remedied:g} lowers the cap of importance weights, which "
            f"{rl.algorithm.kind} has not; a remedy lowers the gradient clip alone"
        )
    run, longest = recipe.rollout.repetition_run, recipe.ladder.windows[-1]
    if run >= longest:
        found.append(
            f"rollout.repetition_run={run} tokens never fit into the last ladder window of "
            f"{longest}, so no answer will be stopped for repetition; lower it, or set 0"
        )
    return found
