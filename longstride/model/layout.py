"""Where the documents of a batch begin and end, worked out once and shared by all layers.

Legend: B rows, T tokens of a row, R rotated dimensions / 2, n chunks of a row, C tokens of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ChunkLayout:
    """How a row of T tokens is cut into n chunks of C tokens for lightning attention.

    The masks are None when every row is one document: causality alone is then enough.
    """

    tokens: int
    """T."""
    chunk: int
    """C; n x C >= T, the surplus is zero-filled on the right."""
    count: int
    """n."""
    same_BnCC: Tensor | None = None
    """1 where query and key of one chunk belong to the same document."""
    reads_BnC: Tensor | None = None
    """1 where a token continues the document that the incoming state belongs to."""
    writes_BnC: Tensor | None = None
    """1 where a token belongs to the document that the outgoing state belongs to."""
    carries_Bn: Tensor | None = None
    """1 where the chunk's outgoing state still belongs to the document of the incoming one."""
    segments_BT: Tensor | None = None
    """Document index of each token, for kernels that want boundaries in another form."""

    @property
    def padded(self) -> int:
        """Return n x C, the tokens of a row after zero-filling."""
        return self.chunk * self.count


@dataclass(frozen=True)
class RowLayout:
    """Document boundaries of a batch in the form that each kind of layer wants."""

    chunks: ChunkLayout
    cos_BTR: Tensor | None = None
    """Cosines of the rotation angles, fp32; None when nothing is rotated."""
    sin_BTR: Tensor | None = None
    """Sines of the rotation angles, fp32."""
    visible_B1TT: Tensor | None = None
    """True where a query may see a key; None means plain causal attention."""
    valid_BT: Tensor | None = None
    """True on tokens that are not padding; None when there is none."""


def chunk_layout(tokens: int, chunk: int, segments_BT: Tensor | None = None) -> ChunkLayout:
    """Cut rows of `tokens` tokens into ceil(tokens / chunk) chunks of nearly equal size.

    Args:
        tokens: T, at least 1.
        chunk: upper bound of C; the chunks are evened out, so that little is zero-filled.
        segments_BT: document index of each token; each document is one contiguous run.
    """
    count = -(-tokens // chunk)
    size = -(-tokens // count)
    if segments_BT is None:
        return ChunkLayout(tokens, size, count)
    surplus = count * size - tokens
    padded = torch.nn.functional.pad(segments_BT, (0, surplus), value=-1)
    seg_BnC = padded.view(-1, count, size)
    last_Bn = seg_BnC[:, :, -1]
    # The state before the first chunk is zero, so whom it belongs to does not matter.
    before_Bn = torch.cat([seg_BnC[:, :1, 0], last_Bn[:, :-1]], dim=1)
    return ChunkLayout(
        tokens,
        size,
        count,
        same_BnCC=(seg_BnC[..., :, None] == seg_BnC[..., None, :]).float(),
        reads_BnC=(seg_BnC == before_Bn[..., None]).float(),
        writes_BnC=(seg_BnC == last_Bn[..., None]).float(),
        carries_Bn=(before_Bn == last_Bn).float(),
        segments_BT=segments_BT,
    )


def restarting_positions(segments_BT: Tensor) -> Tensor:
    """Return int64 positions that restart at 0 where the document index changes."""
    index_BT = torch.arange(segments_BT.shape[1], device=segments_BT.device).expand_as(segments_BT)
    starts_BT = torch.ones_like(segments_BT, dtype=torch.bool)
    starts_BT[:, 1:] = segments_BT[:, 1:] != segments_BT[:, :-1]
    first_BT = torch.where(starts_BT, index_BT, 0).cummax(dim=1).values
    return index_BT - first_BT


def rotation(positions_BT: Tensor, rotary_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin, [B, T, rotary_dim / 2] fp32, of angles position x base^(-2i/rotary_dim).

    Computed in fp32 whatever the model's type: at position 1M bfloat16 has no fraction bits left.
    """
    exponent_R = torch.arange(0, rotary_dim, 2, device=positions_BT.device).float() / rotary_dim
    angle_BTR = positions_BT[..., None].float() * base**-exponent_R
    return angle_BTR.cos(), angle_BTR.sin()


def row_layout(
    shape: tuple[int, int],
    *,
    device: torch.device,
    chunk: int,
    rotary_dim: int,
    rope_base: float,
    needs_softmax: bool = True,
    segments_BT: Tensor | None = None,
    positions_BT: Tensor | None = None,
) -> RowLayout:
    """Work out the layout of a batch of `shape` = (B, T).

    Args:
        shape: B and T.
        device: where the masks live.
        chunk: upper bound of the lightning chunk.
        rotary_dim: leading head dimensions to rotate, 0 for none.
        rope_base: RoPE base.
        needs_softmax: False leaves out what only softmax layers need.
        segments_BT: document index of each token, -1 on right padding; None means one document.
        positions_BT: position of each token in its document; derived when None.
    """
    rows, tokens = shape
    valid = segments_BT >= 0 if segments_BT is not None else None
    if valid is not None and bool(valid.all()):
        valid = None
    if positions_BT is None:
        if segments_BT is None:
            positions_BT = torch.arange(tokens, device=device).expand(rows, tokens)
        else:
            positions_BT = restarting_positions(segments_BT)
    cos = sin = visible = None
    # One document followed by padding needs no mask: nothing real comes after the padding.
    packed = segments_BT
    if segments_BT is not None:
        first = segments_BT[:, :1]
        if bool(((segments_BT == first) | (segments_BT < 0)).all()):
            packed = None
    if needs_softmax:
        if rotary_dim:
            cos, sin = rotation(positions_BT, rotary_dim, rope_base)
        if packed is not None:
            same = packed[:, :, None] == packed[:, None, :]
            visible = same.tril()[:, None]
    return RowLayout(chunk_layout(tokens, chunk, packed), cos, sin, visible, valid)
