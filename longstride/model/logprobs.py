"""Log-probabilities of given tokens without ever holding [tokens x vocabulary] in fp32.

Legend: B rows, T tokens, N = B x T, V vocabulary, X hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from longstride.model.hybrid import HybridModel
from longstride.model.norms import without_autocast

_CHUNK_ELEMENTS = 1 << 21
"""Logits held at a time by default: 8 MB in fp32, which stays in cache."""


class _TokenLogprobs(torch.autograd.Function):
    """log softmax(h W^T / temperature)[target], chunk by chunk; logits are recomputed backward."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NX: Tensor, weight_VX: Tensor, targets_N: Tensor, scale: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        logp_N = torch.empty(hidden_NX.shape[0], dtype=weight_VX.dtype, device=hidden_NX.device)
        entropy_N, norm_N = torch.empty_like(logp_N), torch.empty_like(logp_N)
        for start in range(0, hidden_NX.shape[0], chunk):
            part = slice(start, start + chunk)
            logits = _logits(hidden_NX[part], weight_VX, scale)
            chosen = logits.gather(1, targets_N[part, None])[:, 0]
            norm = logits.logsumexp(-1)
            norm_N[part] = norm
            logp_N[part] = chosen - norm
            probs = (logits - norm[:, None]).exp_()
            entropy_N[part] = norm - torch.linalg.vecdot(probs, logits)
        ctx.save_for_backward(hidden_NX, weight_VX, targets_N, norm_N)
        ctx.scale, ctx.chunk = scale, chunk
        ctx.mark_non_differentiable(entropy_N)
        return logp_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_NX, weight_VX, targets_N, norm_N = ctx.saved_tensors
        grad_N = grads[0] * ctx.scale
        dhidden, dweight = torch.empty_like(hidden_NX), torch.zeros_like(weight_VX)
        for start in range(0, hidden_NX.shape[0], ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logits = _logits(hidden_NX[part], weight_VX, ctx.scale)
            dlogits = logits.sub_(norm_N[part, None]).exp_().mul_(-grad_N[part, None])
            dlogits.scatter_add_(1, targets_N[part, None], grad_N[part, None])
            dhidden[part] = dlogits @ weight_VX
            dweight.addmm_(dlogits.t(), hidden_NX[part].to(weight_VX.dtype))
        return dhidden, dweight, None, None, None


def _logits(hidden: Tensor, weight: Tensor, scale: float) -> Tensor:
    logits = hidden.to(weight.dtype) @ weight.t()
    return logits.mul_(scale) if scale != 1.0 else logits


def token_logprobs(
    model: HybridModel,
    hidden_BTD: Tensor,
    targets_BT: Tensor,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of the targets and the entropies, both [B, T] fp32.

    Args:
        model: whose fp32 head is used; gradients flow to it and to `hidden_BTD`, exactly.
        hidden_BTD: hidden states; position t predicts `targets_BT[:, t]`.
        targets_BT: token ids in [0, vocab_size). Masking is the caller's: every position counts.
        temperature: above 0; logits are divided by it, as the sampler does.
        chunk_tokens: tokens whose logits exist at a time; None chooses by vocabulary.

    The entropy (nats, of the tempered distribution) carries no gradient.
    """
    if temperature <= 0.0:
        raise ValueError(
            f"temperature={temperature} must be above 0; greedy has no log-probability"
        )
    if hidden_BTD.shape[:2] != targets_BT.shape:
        raise ValueError(
            f"hidden states {tuple(hidden_BTD.shape)} and targets {tuple(targets_BT.shape)} differ "
            "in rows or tokens; cut both to the same positions"
        )
    weight = model.head.weight
    chunk = chunk_tokens or max(64, _CHUNK_ELEMENTS // weight.shape[0])
    flat_NX = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
    targets_N = targets_BT.reshape(-1).long()
    with without_autocast(hidden_BTD):
        logp_N, entropy_N = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            flat_NX, weight, targets_N, 1.0 / temperature, chunk
        )
    return logp_N.view(targets_BT.shape), entropy_N.view(targets_BT.shape)
