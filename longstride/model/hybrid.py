"""The hybrid model of MiniMax-Text-01 and M1: lightning and softmax layers, each with experts.

Residual scheme (post-norm with DeepNorm, arXiv 2203.00555): the residual is the *normed* input,

    x <- norm_1(x);  x <- alpha x + attention(x);  x <- norm_2(x);  x <- alpha x + experts(x)

with alpha = (2 L)^(1/4) and initial gain (8 L)^(-1/4) on values, outputs and experts.

With `residual: prenorm` the same class is a dense llama or qwen, whose residual is not normed:

    x <- x + attention(norm_1(x));  x <- x + mlp(norm_2(x))
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from longstride.model.experts import Balance, ExpertMixture, load_balancing_loss
from longstride.model.kernels import operations
from longstride.model.layout import RowLayout, row_layout
from longstride.model.lightning import LightningAttention
from longstride.model.norms import Float32Module, RMSNorm, without_autocast
from longstride.model.softmax import SoftmaxAttention
from schemas.model import ModelConfig


class HiddenOutput(NamedTuple):
    """What the trunk returns; the head is applied apart, in pieces if need be."""

    hidden_BTD: Tensor
    """Final normed hidden states, [B, T, hidden], in the model's type."""
    aux_loss: Tensor
    """Load-balancing loss, a scalar *before* `config.router_aux_loss_coef`; 0 for dense models."""


class Head(Float32Module):
    """Output projection in fp32: weights, inputs and logits, whatever the model's type.

    M1 found the head's precision to decide whether training and inference agree on probabilities.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.vocab_size, config.hidden_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits [..., vocab] in fp32."""
        with without_autocast(hidden):
            return nn.functional.linear(hidden.to(self.weight.dtype), self.weight)


class Block(nn.Module):
    """One layer: attention of either kind, then experts, each with its norm and residual."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.deepnorm = config.residual == "deepnorm"
        self.alpha = (2.0 * config.num_layers) ** 0.25 if self.deepnorm else 1.0
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.lightning = config.block_types[layer] == "lightning"
        self.attention: LightningAttention | SoftmaxAttention = (
            LightningAttention(config, layer) if self.lightning else SoftmaxAttention(config)
        )
        self.mlp = ExpertMixture(config)

    def forward(self, x: Tensor, layout: RowLayout) -> tuple[Tensor, Balance]:
        """Return the residual stream after this layer and the routing statistics."""
        normed = self.attention_norm(x)
        if isinstance(self.attention, LightningAttention):
            mixed = self.attention(normed, layout.chunks)
        else:
            mixed = self.attention(normed, layout)
        x = self._add(x, normed, mixed)
        normed = self.mlp_norm(x)
        out, balance = self.mlp(normed, layout.valid_BT)
        return self._add(x, normed, out), balance

    def finish(self, x_RX: Tensor, normed_RX: Tensor, mixed_RX: Tensor) -> Tensor:
        """Apply residual and experts after `mixed` = attention(normed), without statistics.

        `mixed_RX` may be overwritten.
        """
        base = normed_RX if self.deepnorm else x_RX
        norm = self.mlp_norm
        if operations.usable(mixed_RX, base, norm.weight):
            x, normed = operations.add_norm(mixed_RX, base, self.alpha, norm.weight, norm.eps)
        else:
            x = torch.add(mixed_RX, base, alpha=self.alpha)
            normed = norm(x)
        return self.mlp.step(normed, normed if self.deepnorm else x, self.alpha)

    def _add(self, x: Tensor, normed: Tensor, update: Tensor) -> Tensor:
        return torch.add(update, normed if self.deepnorm else x, alpha=self.alpha)


class HybridModel(nn.Module):
    """Token ids in, hidden states out; `logits` applies the fp32 head.

    A new model holds zeros: call `initialise`, or load a checkpoint.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # Given weights skip torch's own initialisation, which would consume the global generator;
        # the meta device would do so too, but its first use imports sympy, for seconds.
        zeros = torch.zeros(config.vocab_size, config.hidden_size)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size, _weight=zeros)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.head = Head(config)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw all weights from normal(0, init_std), with the DeepNorm gain where it belongs.

        The gain (8 L)^(-1/4) goes to value and output projections and to the experts
        (arXiv 2203.00555, figure 2). Equal seeds give equal weights; the global generator is not
        touched.
        """
        generator = torch.Generator().manual_seed(seed)
        deepnorm = self.config.residual == "deepnorm"
        gain = (8.0 * self.config.num_layers) ** -0.25 if deepnorm else 1.0
        for name, parameter in self.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
                continue
            drawn = torch.randn(parameter.shape, generator=generator) * self.config.init_std
            if name.endswith(("out_proj.weight", "mlp.w13", "mlp.w2")):
                drawn *= gain
            parameter.copy_(drawn)
        for block in self.blocks:
            assert isinstance(block, Block)
            for rows in _value_rows(block.attention):
                rows *= gain

    def layout(
        self,
        shape: tuple[int, int],
        segments_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> RowLayout:
        """Work out document boundaries and rotations for a batch of `shape` = (B, T)."""
        config = self.config
        return row_layout(
            shape,
            device=self.embed.weight.device,
            chunk=config.lightning_chunk,
            rotary_dim=config.rotary_dim,
            rope_base=config.rope_base,
            needs_softmax="softmax" in config.block_types,
            segments_BT=segments_BT,
            positions_BT=positions_BT,
        )

    def forward(
        self,
        tokens_BT: Tensor,
        segments_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> HiddenOutput:
        """Run the trunk.

        Args:
            tokens_BT: token ids, [B, T] integers in [0, vocab_size).
            segments_BT: document index of each token within its row, -1 on right padding; one
                document is one contiguous run. None: every row is one document.
            positions_BT: position in the document, for RoPE; derived from the segments when None.
        """
        rows, tokens = tokens_BT.shape
        layout = self.layout((rows, tokens), segments_BT, positions_BT)
        x = self.embed(tokens_BT)
        balances: list[Balance] = []
        for block in self.blocks:
            x, balance = block(x, layout)
            balances.append(balance)
        hidden = self.norm(x)
        if self.config.num_experts == 1:
            return HiddenOutput(hidden, balances[0].probs_E.sum())
        counted = rows * tokens if layout.valid_BT is None else layout.valid_BT.sum()
        return HiddenOutput(hidden, load_balancing_loss(balances, counted))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return fp32 logits [..., vocab_size] of hidden states [..., hidden]."""
        return self.head(hidden)  # type: ignore[no-any-return]


def _value_rows(attention: LightningAttention | SoftmaxAttention) -> list[Tensor]:
    """Return views of the rows of a fused projection that produce values."""
    if isinstance(attention, LightningAttention):
        weight = attention.qkvg_proj.weight[: 3 * attention.width]
        return [weight.view(attention.heads, 3, attention.dim, -1)[:, 2]]
    return [attention.qkv_proj.weight[-attention.sizes[2] :]]
