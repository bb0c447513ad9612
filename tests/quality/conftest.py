"""One set of honest artifacts for all tests of the quality room, built by the real steps."""

from functools import cache

import pytest
from quality_parts import (
    Parts,
    make_recipe,
    make_result,
    make_rollouts,
    make_samples,
    write_eval,
    write_rollouts,
)

import longstride.data.held_out as held_out
from longstride.data.corpus import build_corpus
from longstride.data.sft import build_chat_examples
from longstride.data.stage_rows import pack_examples, pack_for_stage
from longstride.data.tasks import draw
from longstride.data.tokenizer_training import train_on_corpus
from longstride.store.artifacts import publish
from longstride.store.files import write_jsonl


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    root = tmp_path_factory.mktemp("artifacts")
    recipe = make_recipe()
    names = ("documents", "tokenizer", "pretrain", "extend-1", "chat", "sft", "prompts",
             "rollouts", "before", "after")  # fmt: skip
    made = Parts(recipe, root, {name: root / name for name in names})
    build_corpus(recipe, made["documents"])
    train_on_corpus(recipe, made["documents"], made["tokenizer"])
    for stage in ("pretrain", "extend-1"):
        pack_for_stage(recipe, stage, made["documents"], made["tokenizer"], made[stage])
    build_chat_examples(recipe, made["chat"])
    pack_examples(recipe, made["chat"], made["tokenizer"], made["sft"])
    made["prompts"].mkdir()
    prompts = [
        prompt.model_copy(update={"pass_rate": 0.5}) for prompt in draw(recipe.tasks, 12, 1, "rl")
    ]
    write_jsonl(made["prompts"] / "prompts.jsonl", prompts)
    publish(made["prompts"], "prompts", "rl-prompts", counts={"candidates": 20})
    write_rollouts(made["rollouts"], make_rollouts())
    for name, right in (("before", 0.4), ("after", 0.6)):
        samples = make_samples(right)
        write_eval(made[name], samples, make_result(samples, name))
    return made


@pytest.fixture(scope="session", autouse=True)
def _problems_are_generated_once():
    """Benchmark problems are the same for every gate of a recipe; making them is slow."""
    patch = pytest.MonkeyPatch()
    generate = held_out.benchmark_problems
    once = cache(lambda text: generate(make_recipe().model_validate_json(text)))
    patch.setattr(held_out, "benchmark_problems", lambda recipe: once(recipe.model_dump_json()))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def checkpoints(parts):
    """A fresh model and a stage trained from it, written by the real code."""
    from longstride.training.checkpoints import open_checkpoint, publish_checkpoint
    from longstride.training.language import initialise

    initialise(parts.recipe, parts.root / "init")
    opened = open_checkpoint(parts.root / "init")
    publish_checkpoint(
        opened.model,
        parts.root / "trained",
        stage="pretrain",
        step=5,
        tokens_seen=1_000,
        recipe_digest=parts.recipe.digest(),
        parents={"checkpoint": opened.digest},
        metrics={"loss": 5.0, "validation_loss": 5.0, "validation_loss_before": 6.0},
    )
    parts.paths |= {name: parts.root / name for name in ("init", "trained")}
    return parts.root / "init", parts.root / "trained"
