"""Softmax attention with grouped keys and partial rotary positions.

Legend: B rows, T tokens, H query heads, K key/value heads, G = H / K, D head width, R rotated
dimensions / 2, S slots of a key/value cache.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from longstride.model.layout import RowLayout
from longstride.model.norms import RMSNorm, projection
from schemas.model import ModelConfig


def rotate(x_BHTD: Tensor, cos_BTR: Tensor, sin_BTR: Tensor) -> Tensor:
    """Rotate the first 2R dimensions of every head; the others pass unchanged.

    Dimension i is paired with i + R (not with its neighbour), as in the published weights:
    (a, b) -> (a cos - b sin, b cos + a sin).
    """
    half = cos_BTR.shape[-1]
    cos, sin = cos_BTR[:, None].to(x_BHTD.dtype), sin_BTR[:, None].to(x_BHTD.dtype)
    a, b, rest = x_BHTD[..., :half], x_BHTD[..., half : 2 * half], x_BHTD[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


class SoftmaxAttention(nn.Module):
    """One softmax layer; queries, keys and values come from one fused projection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = (
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
        )
        self.groups = self.heads // self.kv_heads
        self.sizes = [self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim]
        self.qkv_proj = projection(config.hidden_size, sum(self.sizes), config.qkv_bias)
        self.q_norm = RMSNorm(self.dim, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.dim, config.norm_eps) if config.qk_norm else None
        self.out_proj = projection(self.heads * self.dim, config.hidden_size)

    def _project(self, x_BTE: Tensor, layout: RowLayout) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated q [B, H, T, D], rotated k and v [B, K, T, D]."""
        rows, tokens, _ = x_BTE.shape
        q, k, v = (
            part.reshape(rows, tokens, -1, self.dim)
            for part in self.qkv_proj(x_BTE).split(self.sizes, dim=-1)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if layout.cos_BTR is not None and layout.sin_BTR is not None:
            q = rotate(q, layout.cos_BTR, layout.sin_BTR)
            k = rotate(k, layout.cos_BTR, layout.sin_BTR)
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, layout: RowLayout) -> Tensor:
        rows, _, tokens, _ = q.shape
        if self.groups > 1:
            k = k.repeat_interleave(self.groups, dim=1)
            v = v.repeat_interleave(self.groups, dim=1)
        o = scaled_dot_product_attention(
            q, k, v, attn_mask=layout.visible_B1TT, is_causal=layout.visible_B1TT is None
        )
        return self.out_proj(o.transpose(1, 2).reshape(rows, tokens, -1))  # type: ignore[no-any-return]

    def forward(self, x_BTE: Tensor, layout: RowLayout) -> Tensor:
        """Return the layer's output, [B, T, hidden]."""
        return self._attend(*self._project(x_BTE, layout), layout)

    def prefill(self, x_BTE: Tensor, layout: RowLayout) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output and the rotated keys and the values, [B, K, T, D]."""
        q, k, v = self._project(x_BTE, layout)
        return self._attend(q, k, v, layout), k, v

    def step(
        self, x_RE: Tensor, layout: RowLayout, keys: Tensor, values: Tensor, lengths_R: Tensor
    ) -> Tensor:
        """Append one token of R rows to their caches [R, K, S, D] and attend; return [R, hidden].

        `lengths_R` counts the tokens already cached; the new one goes to that slot.
        """
        rows = x_RE.shape[0]
        q, k, v = self._project(x_RE[:, None], layout)
        index = torch.arange(rows, device=x_RE.device)
        keys[index, :, lengths_R] = k[:, :, 0]
        values[index, :, lengths_R] = v[:, :, 0]
        used = int(lengths_R.max()) + 1
        q_RKGD = q.view(rows, self.kv_heads, self.groups, self.dim)
        scores = (q_RKGD @ keys[:, :, :used].transpose(-1, -2)).float() * self.dim**-0.5
        slots = torch.arange(used, device=x_RE.device)
        hidden = slots[None] > lengths_R[:, None]
        weights = scores.masked_fill_(hidden[:, None, None], float("-inf")).softmax(-1)
        o = weights.to(values.dtype) @ values[:, :, :used]
        return self.out_proj(o.reshape(rows, -1))  # type: ignore[no-any-return]
