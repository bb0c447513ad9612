"""A whole decode step in one native call: what `decoding.decode_step` computes, on a CPU in fp32.

Legend: R rows, X hidden width.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from longstride.model.decoding import DecodeState
from longstride.model.hybrid import Block, HybridModel
from longstride.model.kernels.library import library
from longstride.model.kernels.operations import usable
from longstride.model.layout import rotation
from longstride.model.lightning import LightningAttention


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in (
            "rows", "hidden", "layers", "heads", "kv_heads", "dim", "half", "experts", "top_k",
            "inner", "deepnorm",
        )),
        *((name, ctypes.c_float) for name in ("alpha", "eps", "lightning_eps")),
    )  # fmt: skip


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "norm", "projection", "bias", "decay", "inner_norm", "output", "second_norm", "router",
            "w13", "w2", "first", "second",
        )),
        ("slots", ctypes.c_int64),
    )  # fmt: skip


def native_step(model: HybridModel) -> NativeStep | None:
    """Return a native step with the weights as they are now, or None where there is none.

    There is none without the kernels, on other devices and in other types, and for models that
    norm queries and keys.
    """
    if model.config.qk_norm or not usable(*model.parameters()):
        return None
    return NativeStep(model)


class NativeStep:
    """Packed copies of a model's matrices: weights that change later are not seen."""

    def __init__(self, model: HybridModel) -> None:
        """Copy the weights; use `native_step`, which knows whether that makes sense."""
        config = model.config
        self._library: Any = library()
        self._config = config
        self._kept: list[Tensor] = []
        self._embed, self._norm = model.embed.weight, model.norm.weight
        self._layers = (_Layer * config.num_layers)()
        for entry, block in zip(self._layers, model.blocks, strict=True):
            assert isinstance(block, Block)
            self._fill(entry, block)
        deepnorm = config.residual == "deepnorm"
        self._shape = _Shape(
            hidden=config.hidden_size, layers=config.num_layers, heads=config.num_heads,
            kv_heads=config.num_kv_heads, dim=config.head_dim, half=config.rotary_dim // 2,
            experts=config.num_experts, top_k=config.experts_per_token,
            inner=config.expert_hidden_size, deepnorm=deepnorm,
            alpha=(2.0 * config.num_layers) ** 0.25 if deepnorm else 1.0,
            eps=config.norm_eps, lightning_eps=config.lightning_norm_eps,
        )  # fmt: skip

    def _fill(self, entry: _Layer, block: Block) -> None:
        attention, mlp = block.attention, block.mlp
        entry.norm = self._keep(block.attention_norm.weight)
        entry.second_norm = self._keep(block.mlp_norm.weight)
        entry.output = self._pack(attention.out_proj.weight)
        if isinstance(attention, LightningAttention):
            entry.projection = self._pack(attention.qkvg_proj.weight)
            entry.decay = self._keep(torch.exp(-attention.slopes_H))
            entry.inner_norm = self._keep(attention.norm.weight)
        else:
            entry.projection = self._pack(attention.qkv_proj.weight)
            if attention.qkv_proj.bias is not None:
                entry.bias = self._keep(attention.qkv_proj.bias)
        if mlp.router is not None:
            entry.router = self._pack(mlp.router.weight)
        entry.w13, entry.w2 = self._pack(mlp.w13), self._pack(mlp.w2)

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()

    def _pack(self, weight: Tensor) -> int:
        """Pack [outputs, inputs], or several of them one after the other."""
        matrices = weight.detach().contiguous().view(-1, *weight.shape[-2:])
        outputs, inputs = matrices.shape[1:]
        size = self._library.packed_size(outputs, inputs)
        packed = torch.empty(matrices.shape[0], size)
        for matrix, target in zip(matrices, packed, strict=True):
            self._library.pack(matrix.data_ptr(), outputs, inputs, target.data_ptr())
        return self._keep(packed)

    def __call__(self, state: DecodeState, tokens_R: Tensor) -> None:
        """Feed one token to each of the first len(tokens_R) rows; see `decode_step`.

        The state's buffers must be dense, as `empty_state` makes them.
        """
        rows, config = tokens_R.shape[0], self._config
        tokens_R = tokens_R.contiguous()
        lengths_R = state.lengths_R[:rows]
        cos, sin = rotation(lengths_R[:, None], config.rotary_dim, config.rope_base)
        slots = int(lengths_R.max()) + 1
        for entry, memory in zip(self._layers, state.layers, strict=True):
            memory.reserve(slots)
            assert all(tensor.is_contiguous() for tensor in memory.tensors)
            entry.first = memory.tensors[0].data_ptr()
            if not memory.lightning:
                entry.second = memory.tensors[1].data_ptr()
                entry.slots = memory.tensors[0].shape[2]
        self._shape.rows = rows
        failed = self._library.trunk_step(
            ctypes.byref(self._shape),
            self._layers,
            tokens_R.data_ptr(),
            lengths_R.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            self._embed.data_ptr(),
            self._norm.data_ptr(),
            state.hidden_RX.data_ptr(),
        )
        if failed:
            raise MemoryError(f"no memory for a decode step of {rows} rows; lower max_batch")
        lengths_R += 1
