"""What an extension stage measures of the context, before its first step and after its last."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from longstride.evals.passkey import PasskeyRow, passkey_rows
from longstride.model.hybrid import HybridModel
from longstride.recipe.stages import extension_of, is_extension
from longstride.store.seeds import stream_seed
from longstride.tokens.tokenizer import Tokenizer
from longstride.training.engine import Engine
from longstride.training.packed import PackedRows
from longstride.training.probing import passkey_scores, position_perplexity
from schemas.recipe import Recipe

POSITIONS = "validation/perplexity"
PASSKEY = "passkey"


@dataclass(frozen=True)
class ContextProbe:
    """Held-out rows and passkey rows of one stage; empty for stages that do not extend."""

    rows: PackedRows | None = None
    passkeys: tuple[PasskeyRow, ...] = ()

    def measure(self, engine: Engine) -> dict[str, float]:
        """Perplexity by position and passkey scores, by metric name. Collective."""
        tokens = engine.config.microbatch_tokens
        found: dict[str, float] = {}
        if self.rows is not None:
            positions = position_perplexity(engine, self.rows, tokens)
            found |= {f"{POSITIONS}/{name}": value for name, value in positions.items()}
        scores = passkey_scores(engine, self.passkeys, tokens)
        return found | {f"{PASSKEY}/{name}": value for name, value in scores.items()}


def context_probe(
    recipe: Recipe, stage: str, held_out: PackedRows, tokenizer: Path | None
) -> ContextProbe:
    """The probe of a stage. Without a tokenizer there are no passkey rows.

    Their filler is the text of the held-out rows.

    Raises:
        DataError: The tokenizer cannot be used.
    """
    if not is_extension(recipe, stage):
        return ContextProbe()
    samples = extension_of(recipe, stage).passkey_samples
    passkeys: list[PasskeyRow] = []
    if tokenizer is not None and samples:
        filler = held_out.tokens_NT[held_out.segments_NT >= 0].tolist()
        seed = stream_seed(recipe.seed, stage, "passkey")
        passkeys = passkey_rows(Tokenizer.load(tokenizer), filler, held_out.window, samples, seed)
    return ContextProbe(held_out if held_out.rows else None, tuple(passkeys))


@contextmanager
def rope_base_of(model: HybridModel, base: float) -> Iterator[None]:
    """Let the model rotate with another base for a while, as its parent checkpoint did."""
    config = model.config
    model.config = config.model_copy(update={"rope_base": base})
    try:
        yield
    finally:
        model.config = config


def cells(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Every passkey score, before and after."""
    return {
        f"{name}/{when}": value
        for when, found in (("before", before), ("after", after))
        for name, value in found.items()
        if name.startswith(PASSKEY)
    }


def summary(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Perplexities by position, and passkey scores averaged over cells, each before and after."""
    values: dict[str, float] = {}
    for when, found in (("before", before), ("after", after)):
        means = defaultdict(list)
        for name, value in found.items():
            if name.startswith(PASSKEY):
                means[f"{PASSKEY}/{name.rpartition('/')[2]}"].append(value)
            else:
                values[f"{name}/{when}"] = value
        values |= {f"{name}/{when}": statistics.fmean(cells) for name, cells in means.items()}
    return values
