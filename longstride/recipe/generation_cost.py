"""Operations and memory of generating text, for our models and for the one M1 is compared with.

Counting rule: a multiply and an add are two operations; a projection of P parameters costs 2 P a
token. The token at position n (0-based count of earlier tokens) attends to n earlier ones, so a
softmax layer of H heads with keys of width k and values of width v adds 2 H (k + v) n. A lightning
layer updates and reads an H x d x d state: 4 H d^2, at any position. Embedding look-ups, norms,
routers' softmax and sampling are left out; the head is counted where `head` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from longstride.recipe.sizes import parameter_counts
from schemas.model import ModelConfig

Counting = Literal["cumulative", "at_position"]
"""Over a whole generation, or for its last token alone."""


@dataclass(frozen=True)
class TokenCost:
    """What a token costs, as a function of its position."""

    name: str
    dense: float
    """Operations a token in projections and experts: twice the active parameters."""
    constant: float
    """Operations a token in attention that do not depend on the position."""
    per_position: float
    """Operations a token for each token before it."""
    cache_per_position: float
    """Bytes of keys and values that each token adds to a sequence."""
    state: float
    """Bytes of a sequence's recurrent state."""

    def at_position(self, position: float) -> float:
        """Operations of the token that follows `position` others."""
        return self.dense + self.constant + self.per_position * position

    def decode(self, tokens: float, prompt: float = 0.0) -> float:
        """Operations of generating `tokens` tokens after a prompt.

        The sum over positions prompt .. prompt + tokens, in the limit of many: mean position
        prompt + tokens / 2.
        """
        return tokens * self.at_position(prompt + tokens / 2)

    def prefill(self, prompt: float) -> float:
        """Operations of reading a prompt: causal attention, half of the square."""
        return prompt * self.at_position(prompt / 2)

    def memory(self, tokens: float) -> float:
        """Bytes that one sequence of `tokens` tokens holds."""
        return self.state + self.cache_per_position * tokens


def cost_of(
    config: ModelConfig, name: str = "recipe", *, head: bool = True, cache_item: int = 2
) -> TokenCost:
    """A model of ours.

    Args:
        config: its architecture.
        name: what to call it in tables and charts.
        head: count the output projection, as it is when sampling; M1's 45.9B leaves it out.
        cache_item: bytes of one number in the key/value cache; the recurrent state is fp32.
    """
    _, active = parameter_counts(config)
    dense = 2.0 * (active + (config.vocab_size * config.hidden_size if head else 0))
    softmax = config.block_types.count("softmax")
    lightning = config.block_types.count("lightning")
    width = config.num_heads * config.head_dim
    return TokenCost(
        name=name,
        dense=dense,
        constant=lightning * 4.0 * width * config.head_dim,
        per_position=softmax * 4.0 * width,
        cache_per_position=softmax * 2.0 * config.num_kv_heads * config.head_dim * cache_item,
        state=lightning * 4.0 * width * config.head_dim,
    )


def deepseek_r1(*, absorbed: bool = False, cache_item: int = 2) -> TokenCost:
    """DeepSeek-R1: 37B active, 61 layers of multi-head latent attention with 128 heads.

    Keys of 128 + 64 and values of 128 a head when they are unpacked; with the projections absorbed
    (as servers decode), queries meet the latent of 512 + 64 itself and read 512. The cache holds
    the latent either way (arXiv 2412.19437, table of hyperparameters).
    """
    layers, heads = 61, 128
    width = (512 + 64) + 512 if absorbed else (128 + 64) + 128
    return TokenCost(
        name="DeepSeek-R1 (absorbed MLA)" if absorbed else "DeepSeek-R1",
        dense=2.0 * 37e9,
        constant=0.0,
        per_position=layers * heads * 2.0 * width,
        cache_per_position=layers * (512.0 + 64.0) * cache_item,
        state=0.0,
    )


def ratio(ours: TokenCost, theirs: TokenCost, tokens: float, counting: Counting) -> float:
    """Our operations over theirs at a generation length."""
    if counting == "cumulative":
        return ours.decode(tokens) / theirs.decode(tokens)
    return ours.at_position(tokens) / theirs.at_position(tokens)
