"""E7: values are read without torch; and a checkpoint answers in a process of its own."""

import time

import pytest
from poison_checkpoints import huge, remake

from longstride.errors import CheckpointError, GateCouldNotRun
from longstride.model.hybrid import HybridModel
from longstride.quality import answering
from longstride.quality.answering import TOKENS, Answering, answer
from longstride.quality.measure_checkpoint import expected_shapes
from longstride.quality.tensors import tensor_facts
from schemas.model import ModelConfig


def test_a_checkpoint_answers_in_a_process_of_its_own(checkpoints):
    with Answering(checkpoints[1], 120.0) as process:
        assert process.facts() == {"answers": True}
    assert len(answer(checkpoints[1])) == TOKENS


def test_a_checkpoint_whose_logits_overflow_is_told_by_name(checkpoints, tmp_path):
    with Answering(remake(checkpoints[1], tmp_path / "c", tensors=huge), 120.0) as process:
        assert process.facts() == {"answers": False}
        assert "not finite" in process.problem


def test_a_process_that_hangs_could_not_run_and_is_killed(checkpoints, monkeypatch):
    monkeypatch.setattr(answering, "answer", lambda path: time.sleep(60))
    began = time.monotonic()
    with (
        pytest.raises(GateCouldNotRun, match=r"within 0\.5 s"),
        Answering(checkpoints[1], 0.5) as process,
    ):
        process.facts()
    assert time.monotonic() - began < 20
    assert not process._process.is_alive()


def test_a_process_that_dies_could_not_run(checkpoints, monkeypatch):
    monkeypatch.setattr(answering, "answer", lambda path: __import__("os")._exit(9))
    with (
        pytest.raises(GateCouldNotRun, match="died with code 9"),
        Answering(checkpoints[1], 60.0) as process,
    ):
        process.facts()


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
