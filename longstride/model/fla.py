"""The lightning operator through flash-linear-attention's kernels, on GPUs where it is installed.

Its `simple_gla` with gamma = -slope and scale 1 is the same recurrence; its `lightning_attn` is
another one (other slopes, scaled queries). Compare with `chunked` by `make test-gpu`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor, nn

from longstride.model.kernels.library import SWITCH
from longstride.model.layout import ChunkLayout


def usable(x: Tensor) -> bool:
    """Return whether these kernels are installed and take the tensor: bf16 or fp16 on a GPU.

    In fp32 they multiply in TF32, which is not the precision that fp32 asks for.
    """
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and _installed()


@functools.cache
def _installed() -> bool:
    return os.environ.get(SWITCH, "on") != "off" and importlib.util.find_spec("fla") is not None


def fla_attention(x_BTE: Tensor, slopes_H: Tensor, heads: int, layout: ChunkLayout) -> Tensor:
    """Return o [B, T, H x D] for the projection [B, T, H x (q|k|v) x D] *before* its SiLU."""
    from fla.ops.simple_gla import chunk_simple_gla

    rows, tokens, width = x_BTE.shape
    active = nn.functional.silu(x_BTE).view(rows, tokens, heads, 3, width // (3 * heads))
    q, k, v = active.unbind(3)
    options: dict[str, Any] = {"g_gamma": -slopes_H, "scale": 1.0}
    if layout.segments_BT is not None:
        # Documents of different rows lie behind each other in one row, with their boundaries.
        q, k, v = (tensor.reshape(1, rows * tokens, heads, -1) for tensor in (q, k, v))
        options["cu_seqlens"] = document_bounds(layout.segments_BT)
    o, _ = chunk_simple_gla(q.contiguous(), k.contiguous(), v.contiguous(), **options)
    return o.reshape(rows, tokens, -1)  # type: ignore[no-any-return]


def document_bounds(segments_BT: Tensor) -> Tensor:
    """Return where each document of the flattened rows starts, and the end: [documents + 1]."""
    rows, tokens = segments_BT.shape
    starts_BT = torch.ones_like(segments_BT, dtype=torch.bool)
    starts_BT[:, 1:] = segments_BT[:, 1:] != segments_BT[:, :-1]
    starts = torch.nonzero(starts_BT.flatten())[:, 0]
    return torch.cat([starts, starts.new_tensor([rows * tokens])])
