"""Curation of RL prompts by the policy that starts RL."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from longstride.data.prompts import build_candidates, curate, user_prompts
from longstride.rewards.generative.judge import open_model_judge
from longstride.rollout.opening import open_generator
from longstride.store.artifacts import open_artifact
from longstride.tokens.tokenizer import Tokenizer
from longstride.training.checkpoints import open_checkpoint
from schemas.artifacts import ArtifactManifest
from schemas.recipe import Recipe


def curate_with_policy(
    recipe: Recipe, examples: Path, tokenizer: Path, checkpoint: Path, out: Path
) -> ArtifactManifest:
    """Keep the candidates whose pass rate lies in the recipe's band.

    Measured at the last window of the ladder: a problem that the first window cuts off belongs to
    later rounds, and until then dynamic sampling passes over it.

    Raises:
        DataError: An input is damaged, or too few prompts survive.
        GeneratorError: The recipe's sampling server failed.
    """
    open_artifact(examples, "chat")
    user = user_prompts(recipe, examples)
    model = open_checkpoint(checkpoint).model
    judge = open_model_judge(recipe, out / ".judge") if recipe.rewards.model else nullcontext()
    with judge as model_judge, open_generator(recipe, model, out) as generator:
        generator.sync(model, 0)
        return curate(
            recipe,
            build_candidates(recipe, examples, user),
            generator,
            Tokenizer.load(tokenizer),
            out,
            recipe.ladder.windows[-1],
            model_judge=model_judge,
            user=user,
        )
