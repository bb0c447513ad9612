"""Matrix products of rows grouped by expert, one call for all experts where torch has one.

Legend: E experts, M rows sorted by expert, I input width, O output width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm

_ALIGNMENT_BYTES = 16


_ROWS_AN_EXPERT = 64
"""On a CPU torch's grouped product costs as much for empty experts as for busy ones; below this
many rows an expert, products of the busy ones alone are faster (ten times at a single row)."""


def _one_call(rows_M: Tensor, ends_E: Tensor, *others: Tensor) -> bool:
    """Return whether torch's grouped product takes these, and should.

    It does not take fp64, nor rows that are not on 16-byte bounds.
    """
    if rows_M.is_cpu and rows_M.shape[0] < _ROWS_AN_EXPERT * ends_E.shape[0]:
        return False
    return all(
        t.dtype != torch.float64 and t.shape[-1] * t.element_size() % _ALIGNMENT_BYTES == 0
        for t in (rows_M, *others)
    )


def _spans(ends_E: Tensor) -> list[tuple[int, int, int]]:
    ends = ends_E.tolist()
    return [(e, a, b) for e, (a, b) in enumerate(zip([0, *ends], ends, strict=False)) if b > a]


def apply_experts(x_MI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
    """Return x W_e^T of each row, [M, O]; `ends_E` int32 says where each expert's rows end."""
    if _one_call(x_MI, ends_E, weight_EOI):
        return grouped_mm(x_MI, weight_EOI.transpose(1, 2), offs=ends_E)
    out = x_MI.new_empty(x_MI.shape[0], weight_EOI.shape[1])
    for expert, start, stop in _spans(ends_E):
        torch.mm(x_MI[start:stop], weight_EOI[expert].t(), out=out[start:stop])
    return out


def pull_back_experts(grad_MO: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
    """Return g W_e of each row, [M, I]: the gradient of the input of `apply_experts`."""
    if _one_call(grad_MO, ends_E, weight_EOI):
        return grouped_mm(grad_MO, weight_EOI, offs=ends_E)
    out = grad_MO.new_empty(grad_MO.shape[0], weight_EOI.shape[2])
    for expert, start, stop in _spans(ends_E):
        torch.mm(grad_MO[start:stop], weight_EOI[expert], out=out[start:stop])
    return out


def expert_gradients(grad_MO: Tensor, x_MI: Tensor, ends_E: Tensor) -> Tensor:
    """Return each expert's g^T x, [E, O, I], zero for an expert without rows."""
    if _one_call(grad_MO, ends_E, x_MI):
        return grouped_mm(grad_MO.t(), x_MI, offs=ends_E)
    out = grad_MO.new_zeros(ends_E.shape[0], grad_MO.shape[1], x_MI.shape[1])
    for expert, start, stop in _spans(ends_E):
        torch.mm(grad_MO[start:stop].t(), x_MI[start:stop], out=out[expert])
    return out
