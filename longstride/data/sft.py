"""Chat examples: task problems with chain-of-thought traces, some with reflection; and packing."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from longstride.data.packing import best_fit, write_packed
from longstride.data.rows import Segment
from longstride.data.tasks import draw
from longstride.data.text import order_key
from longstride.data.traces import NoTraceError, write_trace
from longstride.errors import DataError
from longstride.store.artifacts import digest_of_artifact, open_artifact, publish
from longstride.store.files import read_jsonl, write_json, write_jsonl
from longstride.tokens.chat import render_example
from longstride.tokens.tokenizer import SPECIALS, Tokenizer
from schemas.artifacts import ArtifactManifest
from schemas.base import Contract
from schemas.recipe import Recipe
from schemas.rows import ChatExample, Message, RLPrompt

EXAMPLES = "examples.jsonl"
SUMMARY = "summary.json"
_LEAST_SHARE = 0.5


class ChatSummary(Contract):
    """What the chat examples are made of."""

    examples: int
    """Conversations."""
    asked: int
    """Conversations that the recipe asks for."""
    reflection: int
    """Conversations with a corrected mistake."""
    by_level: dict[str, int]
    """Conversations by `family/level`."""
    without_trace: int
    """Problems left out because no trace could be written."""


def build_chat_examples(recipe: Recipe, out: Path) -> ArtifactManifest:
    """Write SFT conversations for the recipe's tasks, each problem once, shuffled.

    Small levels are exhausted and the others make up for them; when all are exhausted there are
    fewer examples than asked, which the manifest's counts show.

    Raises:
        DataError: A family has no trace writer, or fewer than half of the examples can be made.
    """
    out.mkdir(parents=True, exist_ok=True)
    prompts = draw(recipe.tasks, recipe.sft.examples, recipe.seed, "sft")
    prompts.sort(key=lambda prompt: order_key(recipe.seed, "sft", prompt.id))
    rng = random.Random(f"{recipe.seed}/sft-traces")
    examples = [e for p in prompts if (e := _example(p, rng, recipe.sft.reflection_share))]
    if len(examples) < recipe.sft.examples * _LEAST_SHARE:
        raise DataError(
            f"sft.examples={recipe.sft.examples}, but the task families have only {len(examples)} "
            "distinct problems with a trace; widen the levels or lower sft.examples"
        )
    write_jsonl(out / EXAMPLES, examples)
    summary = _summarise(recipe, prompts, examples)
    write_json(out / SUMMARY, summary)
    return publish(
        out,
        "chat",
        "sft-data",
        recipe_digest=recipe.digest(),
        counts={
            "examples": summary.examples,
            "asked": summary.asked,
            "reflection": summary.reflection,
            "without_trace": summary.without_trace,
        },
    )


def pack_chat(
    examples_dir: Path,
    tokenizer: Tokenizer,
    window: int,
    out: Path,
    seed: int,
    stage: str = "sft",
    recipe_digest: str = "",
) -> ArtifactManifest:
    """Pack conversations into padded rows of `window` tokens (best fit); none is ever split.

    The loss mask is 1 on the assistant's tokens only, think tags and end of turn included.

    Raises:
        DataError: Every conversation is longer than the window.
    """
    out.mkdir(parents=True, exist_ok=True)
    parent = open_artifact(examples_dir, "chat")
    segments = [_segment(e, tokenizer) for e in read_jsonl(examples_dir / EXAMPLES, ChatExample)]
    fitting = [segment for segment in segments if len(segment.tokens) <= window]
    if not fitting:
        shortest = min((len(segment.tokens) for segment in segments), default=0)
        raise DataError(
            f"none of the {len(segments)} conversations in {examples_dir} fits sft.window={window} "
            f"tokens (the shortest has {shortest}); enlarge sft.window"
        )
    fitting.sort(key=lambda segment: order_key(seed, "pack", segment.document))
    rows = best_fit(fitting, window)
    rows.sort(key=lambda row: order_key(seed, "rows", row[0].document))
    return write_packed(
        rows,
        window,
        tokenizer.pad_id,
        out,
        stage=stage,
        recipe_digest=recipe_digest,
        parents={"chat": digest_of_artifact(parent), "tokenizer": tokenizer.digest},
        counts={
            "examples": len(fitting),
            "dropped_too_long": len(segments) - len(fitting),
            **{f"token_id/{name}": tokenizer.special(name) for name in SPECIALS},
        },
    )


def _segment(example: ChatExample, tokenizer: Tokenizer) -> Segment:
    tokens, mask = render_example(tokenizer, example.messages)
    mask[0] = 0  # nothing precedes it, so nothing predicts it
    return Segment(example.id, example.domain, tokens, mask, truncated=False)


def _example(prompt: RLPrompt, rng: random.Random, reflection_share: float) -> ChatExample | None:
    """One conversation; without reflection where no step can be got wrong."""
    reflection = rng.random() < reflection_share
    try:
        try:
            text = write_trace(prompt, rng, reflection)
        except NoTraceError:
            if not reflection:
                raise
            reflection, text = False, write_trace(prompt, rng, reflection=False)
    except NoTraceError:
        return None
    return ChatExample(
        id=f"sft-{prompt.id}",
        messages=[
            Message(role="user", content=prompt.prompt),
            Message(role="assistant", content=text),
        ],
        family=prompt.family,
        reflection=reflection,
    )


def _summarise(recipe: Recipe, prompts: list[RLPrompt], examples: list[ChatExample]) -> ChatSummary:
    level_of = {f"sft-{prompt.id}": f"{prompt.family}/{prompt.level}" for prompt in prompts}
    return ChatSummary(
        examples=len(examples),
        asked=recipe.sft.examples,
        reflection=sum(example.reflection for example in examples),
        by_level=dict(sorted(Counter(level_of[example.id] for example in examples).items())),
        without_trace=len(prompts) - len(examples),
    )
