import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import random_tokens, small_model

from longstride.errors import CheckpointError
from longstride.model.checkpoints import load_model, save_model

NAME = "blocks.1.mlp.w2"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model(small_model(), tmp_path)
    return tmp_path


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_survives_the_trip_to_disk_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    model = small_model().to(dtype)
    save_model(model, tmp_path)
    back = load_model(tmp_path)
    assert back.config == model.config
    batch = random_tokens(2, 9)
    assert torch.equal(model(batch).hidden_BTD, back(batch).hidden_BTD)
    assert back.head.weight.dtype == torch.float32


def test_equal_models_give_equal_bytes(tmp_path: Path, saved: Path) -> None:
    save_model(small_model(), tmp_path / "again")
    again = (tmp_path / "again" / "model.safetensors").read_bytes()
    assert again == (saved / "model.safetensors").read_bytes()


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_truncated_file_is_refused(saved: Path, keep: int) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or corrupt"):
        load_model(saved)


@pytest.mark.parametrize("offset", [0, 7, 9, 40])
def test_a_flipped_header_byte_is_refused(saved: Path, offset: int) -> None:
    path = saved / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0x55
    path.write_bytes(bytes(raw))
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_model(saved)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_weight_is_refused_by_name(saved: Path, value: float) -> None:
    tensor = load_file(saved / "model.safetensors")[NAME]
    tensor[0, 0, 0] = value
    rewrite(saved, **{NAME: tensor})
    with pytest.raises(CheckpointError, match=rf"'{NAME}' holds 1 NaN or infinite .* rerun"):
        load_model(saved)


def test_a_non_finite_model_is_not_saved(tmp_path: Path) -> None:
    model = small_model()
    model.head.weight.data[3, 3] = float("nan")
    with pytest.raises(CheckpointError, match=r"'head\.weight'"):
        save_model(model, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_large_finite_weights_are_accepted(tmp_path: Path) -> None:
    model = small_model()
    model.head.weight.data.fill_(3e38)
    save_model(model, tmp_path)
    assert load_model(tmp_path).head.weight.max().item() == pytest.approx(3e38)


def test_missing_unknown_and_misshapen_tensors_are_named(saved: Path) -> None:
    rewrite(saved, **{NAME: torch.zeros(4, 24, 15)})
    with pytest.raises(
        CheckpointError, match=rf"'{NAME}' is float32 \[4, 24, 15\] .* \[4, 24, 16\]"
    ):
        load_model(saved)
    rewrite(saved, **{NAME: None})
    with pytest.raises(CheckpointError, match=rf"lacks tensor '{NAME}'"):
        load_model(saved)
    save_model(small_model(), saved)
    rewrite(saved, extra=torch.zeros(1))
    with pytest.raises(CheckpointError, match="holds unknown tensor 'extra'"):
        load_model(saved)


def test_a_head_saved_below_fp32_is_refused(saved: Path) -> None:
    tensor = load_file(saved / "model.safetensors")["head.weight"]
    rewrite(saved, **{"head.weight": tensor.bfloat16()})
    with pytest.raises(CheckpointError, match=r"'head\.weight' is bfloat16"):
        load_model(saved)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} does not exist"):
        load_model(saved)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"vocab_size": 3}', "\udcff"])
def test_a_broken_configuration_is_refused(saved: Path, text: str) -> None:
    (saved / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model(saved)


def test_an_unknown_configuration_key_is_refused_by_name(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"hiden_size": 8}))
    with pytest.raises(CheckpointError, match="hiden_size"):
        load_model(saved)
