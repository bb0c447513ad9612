"""E7: a checkpoint before the next stage trains from it."""

from __future__ import annotations

import math
from typing import Final

from longstride.errors import CheckpointError, DataError, GateCouldNotRun
from longstride.quality.answering import Answering
from longstride.quality.frame import Columns, Measured, RowFacts, RowWriter
from longstride.quality.subject import Subject
from longstride.quality.tensors import TensorFacts, tensor_facts
from longstride.recipe.stages import extension_of
from longstride.store.files import read_json
from schemas.artifacts import ArtifactManifest, CheckpointManifest
from schemas.model import ModelConfig

WEIGHTS: Final = "model.safetensors"
OPTIMIZER: Final = "optimizer.safetensors"
_FREE: Final = frozenset({"rope_base", "lightning_chunk"})
"""Settings that may differ from the recipe's model: one grows with the window, one is speed."""
_LOSS: Final = "validation_loss"
_LARGEST_LOSS: Final = 20.0
"""Nats a token; more than guessing uniformly over any vocabulary there is."""
ANSWER_SECONDS: Final = 300.0
"""Deadline of the process that loads a checkpoint and answers a prompt."""


COLUMNS: Final[Columns] = {
    "id": "text",
    "values": "count",
    "not_finite": "count",
    "shape_differs": "flag",
    "all_zero": "flag",
    "not_float": "flag",
}


def measure(subject: Subject, writer: RowWriter) -> Measured:
    """Measure a checkpoint; the reference is its parent, when it has one.

    Rows of the frame are tensors. Meanwhile a fresh process loads the checkpoint and answers a
    prompt, as the next stage will.

    Raises:
        CheckpointError: A file cannot be read; names the file and the tensor.
    """
    config = _config(subject)
    with Answering(subject.path, ANSWER_SECONDS) as answering:
        return _measure(subject, writer, config, answering)


def _measure(
    subject: Subject, writer: RowWriter, config: ModelConfig, answering: Answering
) -> Measured:
    expected = expected_shapes(config)
    found = list(tensor_facts(subject.path / WEIGHTS))
    if not found:
        raise CheckpointError(f"{subject.path / WEIGHTS} holds no tensors; rerun its stage")
    for facts in found:
        writer.append(_row(facts, expected.get(facts.name)))
    optimizer = subject.path / OPTIMIZER
    resumes = optimizer.is_file()
    for facts in tensor_facts(optimizer) if resumes else ():
        writer.append(_row(facts, None, prefix="optimizer/"))
    rows = writer.finish()
    names = {facts.name for facts in found}
    missing, unknown = sorted(expected.keys() - names), sorted(names - expected.keys())
    manifest = _manifest(subject.subject.manifest)
    counted = sum(math.prod(facts.shape) for facts in found)
    heads = [facts.dtype for facts in found if facts.name == "head.weight"]
    differing = _differing(config, subject)
    summary: RowFacts = {
        "missing_tensors": len(missing),
        "unknown_tensors": len(unknown),
        "parameters_recorded": manifest.parameters == counted,
        "head_in_float32": heads in (["F32"], ["F64"]),
        "config_differs": len(differing),
        "rope_base_ratio": config.rope_base / _rope_base(subject),
        "vocabulary_fits": subject.recipe.tokenizer.vocab_size <= config.vocab_size,
        # RL rounds begin where the last one's optimizer stopped; language stages begin afresh.
        "optimizer_present": resumes if manifest.stage.startswith("rl-") else None,
        **_lineage(manifest, subject),
        **answering.facts(),
    }
    culprits = {
        "missing_tensors": missing,
        "unknown_tensors": unknown,
        "config_differs": differing,
    }
    if answering.problem:
        culprits["answers"] = [answering.problem]
    return Measured(rows, summary, culprits)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a model, from its configuration alone."""
    width, inner, experts = config.hidden_size, config.expert_hidden_size, config.num_experts
    heads = config.num_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embed.weight": (config.vocab_size, width),
        "norm.weight": (width,),
        "head.weight": (config.vocab_size, width),
    }
    for layer, kind in enumerate(config.block_types):
        block = f"blocks.{layer}"
        attention = f"{block}.attention"
        shapes[f"{block}.attention_norm.weight"] = (width,)
        shapes[f"{block}.mlp_norm.weight"] = (width,)
        if kind == "lightning":
            shapes[f"{attention}.qkvg_proj.weight"] = (4 * heads, width)
            shapes[f"{attention}.norm.weight"] = (heads,)
        else:
            keys = config.num_kv_heads * config.head_dim
            shapes[f"{attention}.qkv_proj.weight"] = (heads + 2 * keys, width)
        shapes[f"{attention}.out_proj.weight"] = (width, heads)
        shapes[f"{block}.mlp.w13"] = (experts, 2 * inner, width)
        shapes[f"{block}.mlp.w2"] = (experts, width, inner)
        if experts > 1:
            shapes[f"{block}.mlp.router.weight"] = (experts, width)
    return shapes


def _config(subject: Subject) -> ModelConfig:
    try:
        return read_json(subject.path / "config.json", ModelConfig)
    except CheckpointError:
        raise
    except DataError as error:
        raise CheckpointError(str(error)) from error


def _row(facts: TensorFacts, shape: tuple[int, ...] | None, prefix: str = "") -> RowFacts:
    weights = not prefix
    return {
        "id": f"{prefix}{facts.name}",
        "values": math.prod(facts.shape),
        "not_finite": facts.not_finite,
        "shape_differs": facts.shape != shape if weights and shape is not None else None,
        "all_zero": facts.all_zero if weights else None,
        "not_float": not facts.dtype.startswith(("F", "BF")) if weights else None,
    }


def _manifest(manifest: ArtifactManifest) -> CheckpointManifest:
    if not isinstance(manifest, CheckpointManifest):
        raise GateCouldNotRun(f"the manifest of stage {manifest.stage!r} is no checkpoint's")
    return manifest


def _differing(config: ModelConfig, subject: Subject) -> list[str]:
    recipe = subject.recipe.model.model_dump()
    return sorted(
        name for name, value in config.model_dump().items()
        if name not in _FREE and recipe[name] != value
    )  # fmt: skip


def _rope_base(subject: Subject) -> float:
    """RoPE base that the stage must have left in the configuration."""
    recipe, stage = subject.recipe, subject.stage
    if stage in ("pretrain", "initialise"):
        return recipe.model.rope_base
    if stage.startswith("extend"):
        return extension_of(recipe, stage).rope_base
    return recipe.extension[-1].rope_base


def _lineage(manifest: CheckpointManifest, subject: Subject) -> RowFacts:
    losses = [value for name, value in manifest.metrics.items() if "loss" in name]
    facts: RowFacts = {
        "parent_recorded": None,
        "tokens_gained": None,
        "perplexity_ratio": _ratio(manifest, f"{_LOSS}_before", manifest),
        "losses_sound": all(math.isfinite(v) and v < _LARGEST_LOSS for v in losses),
        "validation_loss": manifest.metrics.get(_LOSS),
        "tokenizer_equal": None,
    }
    if subject.reference is None:
        return facts
    parent = _manifest(subject.reference.manifest)
    # A round that is passed through publishes its parent unchanged, manifest included.
    same = subject.subject.digest == subject.reference.digest
    facts["parent_recorded"] = same or subject.reference.digest in manifest.parents.values()
    facts["tokens_gained"] = manifest.tokens_seen - parent.tokens_seen
    own, of_parent = manifest.parents.get("tokenizer"), parent.parents.get("tokenizer")
    if own is not None and of_parent is not None:
        facts["tokenizer_equal"] = own == of_parent
    return facts


def _ratio(after: CheckpointManifest, name: str, before: CheckpointManifest) -> float | None:
    """Perplexity after over perplexity before, on the held-out rows of the same stage."""
    if _LOSS not in after.metrics or name not in before.metrics:
        return None
    return math.exp(min(50.0, after.metrics[_LOSS] - before.metrics[name]))
