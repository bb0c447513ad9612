"""Decoding with one constant lightning state and one key/value cache a row.

`DecodeState` holds buffers for a fixed number of rows; rows `[0, n)` are in use. Lightning states
advance in place, key/value caches grow by doubling. Rows never see each other.

Legend: R rows, H heads, K key/value heads, D head width, S cached slots, X hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longstride.model.hybrid import Block, HybridModel
from longstride.model.layout import RowLayout, chunk_layout, rotation
from longstride.model.lightning import LightningAttention


@dataclass
class LayerState:
    """What one layer remembers of each row."""

    tensors: list[Tensor]
    """Lightning: [state R H D D, fp32]. Softmax: [keys R K S D, values R K S D]."""
    lightning: bool

    def reserve(self, slots: int) -> None:
        """Make room for `slots` tokens in key/value caches, at least doubling when growing."""
        if self.lightning or self.tensors[0].shape[2] >= slots:
            return
        grown = max(slots, 2 * self.tensors[0].shape[2])
        for index, old in enumerate(self.tensors):
            new = old.new_zeros(old.shape[0], old.shape[1], grown, old.shape[3])
            new[:, :, : old.shape[2]] = old
            self.tensors[index] = new


@dataclass
class DecodeState:
    """The memory of R rows in all layers."""

    layers: list[LayerState]
    lengths_R: Tensor
    """Tokens consumed by each row."""
    hidden_RX: Tensor
    """Final hidden state of each row's last token, from which the next one is sampled."""

    @property
    def rows(self) -> int:
        """Return the number of rows that the buffers hold."""
        return self.lengths_R.shape[0]

    def write(self, rows: Tensor, source: DecodeState, source_rows: Tensor) -> None:
        """Copy `source_rows` of `source` into `rows` of this state."""
        self.lengths_R[rows] = source.lengths_R[source_rows]
        self.hidden_RX[rows] = source.hidden_RX[source_rows]
        longest = int(source.lengths_R[source_rows].max()) if len(source_rows) else 0
        for mine, theirs in zip(self.layers, source.layers, strict=True):
            mine.reserve(longest)
            for to, origin in zip(mine.tensors, theirs.tensors, strict=True):
                if mine.lightning:
                    to[rows] = origin[source_rows]
                else:
                    to[rows, :, :longest] = origin[source_rows, :, :longest]


def empty_state(model: HybridModel, rows: int, slots: int) -> DecodeState:
    """Return zeroed buffers for `rows` rows with `slots` cached tokens each."""
    config, like = model.config, model.embed.weight
    heads, dim = config.num_heads, config.head_dim
    layers = []
    for kind in config.block_types:
        if kind == "lightning":
            tensors = [torch.zeros(rows, heads, dim, dim, device=like.device)]
        else:
            shape = (rows, config.num_kv_heads, slots, dim)
            tensors = [like.new_zeros(shape), like.new_zeros(shape)]
        layers.append(LayerState(tensors, kind == "lightning"))
    lengths = torch.zeros(rows, dtype=torch.int64, device=like.device)
    return DecodeState(layers, lengths, like.new_zeros(rows, config.hidden_size))


@torch.no_grad()
def prefill(model: HybridModel, tokens_BT: Tensor, lengths_B: Tensor) -> DecodeState:
    """Read right-padded prompts in one pass and return their state.

    Args:
        model: the policy.
        tokens_BT: prompts, right-padded with any token.
        lengths_B: real tokens of each row, at least 1.
    """
    rows, tokens = tokens_BT.shape
    layout = model.layout((rows, tokens))
    x = model.embed(tokens_BT)
    layers = []
    for block in model.blocks:
        assert isinstance(block, Block)
        normed = block.attention_norm(x)
        if isinstance(block.attention, LightningAttention):
            mixed, state = block.attention.prefill(normed, layout.chunks, lengths_B)
            layers.append(LayerState([state], lightning=True))
        else:
            mixed, keys, values = block.attention.prefill(normed, layout)
            layers.append(LayerState([keys, values], lightning=False))
        flat = (tensor.reshape(rows * tokens, -1) for tensor in (x, normed, mixed))
        x = block.finish(*flat).view(rows, tokens, -1)
    last = x[torch.arange(rows, device=x.device), lengths_B - 1]
    return DecodeState(layers, lengths_B.clone(), model.norm(last))


@torch.no_grad()
def decode_step(model: HybridModel, state: DecodeState, tokens_R: Tensor) -> None:
    """Feed one token to each of the first len(tokens_R) rows, in place.

    Afterwards `state.hidden_RX` of those rows predicts the token that follows.
    """
    rows, config = tokens_R.shape[0], model.config
    lengths_R = state.lengths_R[:rows]
    cos = sin = None
    if config.rotary_dim and "softmax" in config.block_types:
        cos, sin = rotation(lengths_R[:, None], config.rotary_dim, config.rope_base)
    layout = RowLayout(chunk_layout(1, 1), cos, sin)
    slots = int(lengths_R.max()) + 1
    x = model.embed(tokens_R)
    for block, memory in zip(model.blocks, state.layers, strict=True):
        assert isinstance(block, Block)
        normed = block.attention_norm(x)
        if isinstance(block.attention, LightningAttention):
            mixed = block.attention.step(normed, memory.tensors[0][:rows])
        else:
            memory.reserve(slots)
            keys, values = (tensor[:rows] for tensor in memory.tensors)
            mixed = block.attention.step(normed, layout, keys, values, lengths_R)
        x = block.finish(x, normed, mixed)
    state.hidden_RX[:rows] = model.norm(x)
    lengths_R += 1
