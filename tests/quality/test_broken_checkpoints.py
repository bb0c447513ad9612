"""E7: faults of a checkpoint; values are read without torch."""

import json
import shutil

import numpy as np
import pytest
from quality_parts import judge
from safetensors.numpy import load_file, save_file

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from longstride.quality import measure_checkpoint
from longstride.quality.gate import _open
from longstride.quality.measure_checkpoint import expected_shapes
from longstride.quality.subject import Subject
from longstride.quality.suites import load_suite, resolve
from longstride.quality.tensors import tensor_facts
from longstride.store.artifacts import record_files
from schemas.model import ModelConfig


def remake(source, out, tensors=lambda t: None, config=lambda c: None, manifest=lambda m: None):
    out.mkdir()
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


def failed(parts, path, parent, stage="pretrain"):
    subject = Subject(stage, parts.recipe, _open(path, "checkpoint"), _open(parent, "checkpoint"))
    outcome = judge(resolve(load_suite("E7"), parts.recipe), measure_checkpoint.measure(subject))
    return {name for name, passed in outcome.items() if not passed}


def poison(weights):
    weights["blocks.0.mlp.w13"][0, 0, 0] = np.nan


CASES = {
    "tensors_finite": {"tensors": poison},
    "shapes_match": {"tensors": lambda t: t.update({"norm.weight": t["norm.weight"][:8]})},
    "tensors_present": {"tensors": lambda t: t.pop("norm.weight")},
    "tensors_known": {"tensors": lambda t: t.update(extra=np.ones(2, np.float32))},
    "floating_point": {
        "tensors": lambda t: t.update({"norm.weight": np.ones_like(t["norm.weight"], np.int32)})
    },
    "tensors_not_zero": {"tensors": lambda t: t.update({"norm.weight": t["norm.weight"] * 0})},
    "head_in_float32": {
        "tensors": lambda t: t.update({"head.weight": t["head.weight"].astype(np.float16)})
    },
    "parameters_recorded": {"manifest": lambda m: m.update(parameters=7)},
    "architecture": {"config": lambda c: c.update(norm_eps=1e-3)},
    "rope_base": {"config": lambda c: c.update(rope_base=12_345.0)},
    "parent_recorded": {"manifest": lambda m: m.update(parents={"checkpoint": "sha256:other"})},
    "perplexity_against_parent": {"manifest": lambda m: m["metrics"].update(validation_loss=6.1)},
}
SIZE = {"shapes_match", "tensors_present", "tensors_known"}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_of_a_checkpoint_fails_its_check_and_no_other(parts, checkpoints, tmp_path, name):
    first, trained = checkpoints
    found = failed(parts, remake(trained, tmp_path / "c", **CASES[name]), first)
    assert name in found
    assert found <= {name} | ({"parameters_recorded"} if name in SIZE else set())


def test_a_parent_that_saw_more_tokens_is_no_parent(parts, checkpoints, tmp_path):
    first, trained = checkpoints
    later = shutil.copytree(first, tmp_path / "c")
    record = json.loads((later / "checkpoint.json").read_text())
    (later / "checkpoint.json").write_text(json.dumps(record | {"tokens_seen": 5_000}))
    assert failed(parts, trained, later) == {"tokens_not_lost"}


def test_a_checkpoint_that_was_passed_through_is_its_own_parent(parts, checkpoints):
    _, trained = checkpoints
    assert failed(parts, trained, trained) == set()


def test_a_tokenizer_larger_than_the_embedding_is_seen(parts, checkpoints):
    _, trained = checkpoints
    recipe = parts.recipe.model_copy(deep=True)
    recipe.tokenizer.vocab_size = 500
    subject = Subject("pretrain", recipe, _open(trained, "checkpoint"), None)
    assert measure_checkpoint.measure(subject).summary["vocabulary_fits"] is False


@pytest.mark.parametrize("experts", [1, 3])
def test_expected_shapes_are_those_of_the_model(experts):
    config = ModelConfig(
        vocab_size=64, hidden_size=24, block_types=["lightning", "softmax"], num_heads=4,
        num_kv_heads=2, head_dim=8, rotary_dim=4, num_experts=experts, experts_per_token=1,
        expert_hidden_size=12,
    )  # fmt: skip
    real = {name: tuple(t.shape) for name, t in HybridModel(config).state_dict().items()}
    assert expected_shapes(config) == real


def test_bfloat16_values_are_checked_without_a_bfloat16_type(tmp_path):
    import torch
    from safetensors.torch import save_file as save_torch

    values = torch.tensor([1.0, float("inf"), float("nan"), -3e38], dtype=torch.bfloat16)
    save_torch({"w": values}, tmp_path / "m.safetensors")
    (facts,) = tensor_facts(tmp_path / "m.safetensors")
    assert (facts.dtype, facts.not_finite, facts.all_zero) == ("BF16", 2, False)


def test_a_truncated_file_is_refused_by_tensor(checkpoints, tmp_path):
    data = (checkpoints[1] / "model.safetensors").read_bytes()
    path = tmp_path / "model.safetensors"
    path.write_bytes(data[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor '.*' .*truncated"):
        list(tensor_facts(path))


@pytest.mark.parametrize("data", [b"", b"\xff" * 20, (2).to_bytes(8, "little") + b"[]"])
def test_a_file_that_is_no_safetensors_is_refused(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CheckpointError):
        list(tensor_facts(tmp_path / "x"))
