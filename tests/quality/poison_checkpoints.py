"""E7: checkpoints with one fault."""

import json
import shutil

import numpy as np
from poison_parts import Poison
from safetensors.numpy import load_file, save_file

from longstride.store.artifacts import record_files


def remake(source, out, tensors=lambda t: None, config=lambda c: None, manifest=lambda m: None):
    out.mkdir(parents=True)
    weights = dict(load_file(source / "model.safetensors"))
    tensors(weights)
    save_file(weights, out / "model.safetensors")
    settings = json.loads((source / "config.json").read_text())
    config(settings)
    (out / "config.json").write_text(json.dumps(settings))
    record = json.loads((source / "checkpoint.json").read_text())
    files = record_files(out, exclude=("checkpoint.json",))
    record["files"] = {name: entry.model_dump() for name, entry in files.items()}
    manifest(record)
    (out / "checkpoint.json").write_text(json.dumps(record))
    return out


def nan(weights):
    weights["blocks.0.mlp.w13"][0, 0, 0] = np.nan


def checkpoint(*also, **changes):
    return Poison(lambda parts, out: remake(parts["trained"], out, **changes), frozenset(also))


def later_parent(parts, out):
    path = shutil.copytree(parts["init"], out)
    record = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(record | {"tokens_seen": 5_000}))
    return path


def huge(weights):
    """Finite weights whose products are not: only running the model shows it."""
    weights["head.weight"] = np.full_like(weights["head.weight"], 3e38)
    weights["norm.weight"] = np.full_like(weights["norm.weight"], 3e38)


def large_tokenizer(recipe):
    recipe.tokenizer.vocab_size = 500


def tokenizers(own, of_parent):
    def record(name):
        return lambda manifest: manifest["parents"].update(tokenizer=name)

    return Poison(
        lambda parts, out: remake(parts["trained"], out, manifest=record(own)),
        reference=lambda parts, out: remake(parts["init"], out, manifest=record(of_parent)),
    )


def without_optimizer(manifest):
    manifest["stage"] = "rl-1"


POISONS = {
    "tensors_finite": checkpoint("answers", tensors=nan),
    "shapes_match": checkpoint("answers", "parameters_recorded",
        tensors=lambda t: t.update({"norm.weight": t["norm.weight"][:8]})),
    "tensors_present": checkpoint("answers", "parameters_recorded",
        tensors=lambda t: t.pop("norm.weight")),
    "tensors_known": checkpoint("answers", "parameters_recorded",
        tensors=lambda t: t.update(extra=np.ones(2, np.float32))),
    "floating_point": checkpoint("answers",
        tensors=lambda t: t.update({"norm.weight": np.ones_like(t["norm.weight"], np.int32)})),
    "tensors_not_zero": checkpoint(
        tensors=lambda t: t.update({"norm.weight": t["norm.weight"] * 0})),
    "head_in_float32": checkpoint("answers",
        tensors=lambda t: t.update({"head.weight": t["head.weight"].astype(np.float16)})),
    "parameters_recorded": checkpoint(manifest=lambda m: m.update(parameters=7)),
    "architecture": checkpoint(config=lambda c: c.update(norm_eps=1e-3)),
    "rope_base": checkpoint(config=lambda c: c.update(rope_base=12_345.0)),
    "vocabulary_fits": Poison(recipe=large_tokenizer),
    "parent_recorded": checkpoint(
        manifest=lambda m: m.update(parents={"checkpoint": "sha256:other"})),
    "tokens_not_lost": Poison(reference=later_parent),
    "perplexity_against_parent": checkpoint(
        manifest=lambda m: m["metrics"].update(validation_loss=6.1)),
    "answers": checkpoint(tensors=huge),
    "losses_finite": checkpoint(manifest=lambda m: m["metrics"].update(loss=99.0)),
    "optimizer_present": checkpoint(manifest=without_optimizer),
    "tokenizer_equal": tokenizers("sha256:one", "sha256:other"),
}  # fmt: skip
