"""Bytes that a forward and backward pass hold, counted from what the model's operations save.

Everything is a closed formula of the configuration and the shape of a microbatch, so that a plan
needs no torch. A test compares the saved tensors, byte for byte, with those of the real model.

Legend: N tokens of a microbatch in rows of T; X hidden width; H heads of D, W = H D; K key/value
heads, V = K D; E experts, F their width, k experts a token, M = N k; C tokens of a lightning chunk;
w bytes of an element of the body (4, or 2 in bf16). Decays, router, head and everything inside
lightning attention are fp32 (4 bytes) whatever w is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from schemas.model import BlockType, ModelConfig

LOGIT_ELEMENTS = 1 << 21
"""Logits that exist at a time (`longstride.model.logprobs`)."""
PART_ELEMENTS = 1 << 20
"""Scores that the lightning operator holds at a time (`longstride.model.chunked`)."""
_ROW_BYTES = 25
"""A token of packed rows in memory: three int64 and a bool."""


@dataclass(frozen=True)
class Batch:
    """Shape of one microbatch."""

    rows: int
    """B."""
    tokens: int
    """T, tokens of a row, padding included."""
    packed: bool = False
    """Whether a row holds several documents, which then needs masks."""

    @property
    def size(self) -> int:
        """N."""
        return self.rows * self.tokens


@dataclass(frozen=True)
class Arithmetic:
    """How the body computes."""

    item: int = 4
    """w."""
    fused: bool = True
    """Whether the compiled CPU kernels run, which they do in fp32; they save less."""


FP32 = Arithmetic()


def _norm(width: int, item: int) -> int:
    """Saved by an RMSNorm, a token: its input and 1 / rms."""
    return item * width + 4


def _chunks(config: ModelConfig, batch: Batch) -> tuple[int, int]:
    """Chunks of a row and tokens of a chunk; chunks are evened out."""
    count = -(-batch.tokens // config.lightning_chunk)
    return count, -(-batch.tokens // count)


def _lightning_saved(config: ModelConfig, batch: Batch, how: Arithmetic) -> int:
    """Attention of a lightning layer.

    Normed input (w X); projection of q, k, v and gate (4 w W), from which the rest is recomputed;
    states (4 W D a chunk, none for a single one); output (w W); its norm times the gate (w W).
    Without kernels the norm and the gate's sigmoid are saved too (2 w W).
    """
    item, width = how.item, config.num_heads * config.head_dim
    count, _ = _chunks(config, batch)
    states = count * config.head_dim * width if count > 1 else 0
    per_token = _norm(config.hidden_size, item) + item * config.hidden_size + 4
    per_token += item * width * (6 if how.fused else 8)
    return batch.size * per_token + batch.rows * 4 * states


def _lightning_part(config: ModelConfig, batch: Batch, *, backward: bool) -> int:
    """Bytes of the part of a row that the lightning operator works on at a time, in fp32.

    A part has at most 2^20 scores. Forward: q, k, v, output and one weighted copy (5 D a token and
    head), scores (C), two sets of states (2 D D / C). Backward: 8 D, 2 C, 2 D D / C.
    """
    count, size = _chunks(config, batch)
    places = batch.rows * config.num_heads * count * size
    places = min(places, max(batch.rows * config.num_heads * size, PART_ELEMENTS // size))
    dim = config.head_dim
    wide, scores = (8, 2) if backward else (5, 1)
    return 4 * places * (wide * dim + scores * size) + 8 * (places // size) * dim * dim


def _softmax_saved(config: ModelConfig, batch: Batch, how: Arithmetic) -> int:
    """Attention of a softmax layer.

    Normed input, the operands of attention, its result (twice after a rotation, which puts heads
    before tokens, while the output projection wants tokens first), its log-sum-exp (4 H), and the
    float mask of packed rows (w T a token). Keys and values are repeated to H heads when they are
    shared. The norms of queries and keys save their input, and an operand that is neither repeated,
    normed nor rotated is its own input: either keeps the whole projection (W + 2 V).
    """
    heads, kv_heads, item = config.num_heads, config.num_kv_heads, how.item
    width, kv_width = heads * config.head_dim, kv_heads * config.head_dim
    grouped = heads > kv_heads
    made = config.rotary_dim > 0 or config.qk_norm
    per_token = _norm(config.hidden_size, item) + item * config.hidden_size
    if config.qk_norm:
        per_token += 4 * (heads + kv_heads)
    if config.rotary_dim and item < 4:
        # Cosines and sines of queries and of keys, cast for each layer.
        per_token += 2 * config.rotary_dim * item
    per_token += item * width * (made + 2 * grouped) + item * width * (made and not grouped)
    if config.qk_norm or not (made and grouped):
        per_token += item * (width + 2 * kv_width)
    turned = config.rotary_dim > 0 and heads > 1
    per_token += item * width * (1 + turned) + 4 * heads
    if batch.packed:
        per_token += item * batch.tokens
    return batch.size * per_token


def _mlp_saved(config: ModelConfig, batch: Batch, how: Arithmetic) -> int:
    """The second half of a layer.

    The norm before it; dense: input and 4 F; experts: the router's input, probabilities and choice,
    then a token and expert: input and output (2 X), gate, up and product (3 F).
    """
    hidden, inner, k = config.hidden_size, config.expert_hidden_size, config.experts_per_token
    norm = _norm(hidden, how.item)
    if config.num_experts == 1:
        return batch.size * (norm + how.item * (hidden + 4 * inner))
    router = 4 * hidden + 4 * config.num_experts + (4 + 8) * k
    routed = how.item * (2 * hidden + 3 * inner) + 8 + 8
    return batch.size * (norm + router + k * routed)


def layer_saved(config: ModelConfig, kind: BlockType, batch: Batch, how: Arithmetic = FP32) -> int:
    """Bytes of the tensors that one layer saves for its backward pass, exactly."""
    attention = _lightning_saved if kind == "lightning" else _softmax_saved
    return attention(config, batch, how) + _mlp_saved(config, batch, how)


def ends_saved(config: ModelConfig, batch: Batch, how: Arithmetic = FP32) -> int:
    """Bytes saved outside of the layers: token ids, rotations, final norm, log-probabilities."""
    item = how.item
    per_token = 8 + _norm(config.hidden_size, item)
    if config.rotary_dim and "softmax" in config.block_types and item == 4:
        per_token += 4 * config.rotary_dim
    targets = batch.size - batch.rows
    if batch.rows == 1:
        # A single row is cut without a copy.
        return batch.size * (per_token + item * config.hidden_size) + targets * 4
    return batch.size * per_token + targets * (item * config.hidden_size + 12)


def layer_held(config: ModelConfig, kind: BlockType, batch: Batch) -> int:
    """Bytes that a layer's graph node holds besides saved tensors: the decays of its chunks."""
    if kind == "softmax":
        return 0
    _, size = _chunks(config, batch)
    masks = 8 * config.num_heads * batch.size if batch.packed else 0
    return masks + 4 * config.num_heads * size * size


def layout_held(config: ModelConfig, batch: Batch) -> int:
    """Bytes of the batch itself and of the document masks that the lightning layers share."""
    held = _ROW_BYTES * batch.size
    if batch.packed and "lightning" in config.block_types:
        _, size = _chunks(config, batch)
        held += batch.size * (4 * size + 8)
    return held


def _visibility(config: ModelConfig, batch: Batch) -> int:
    """Bytes of the boolean mask of softmax layers, which lives until the last layer has run."""
    packed = batch.packed and "softmax" in config.block_types
    return batch.size * batch.tokens if packed else 0


def layer_backward(
    config: ModelConfig, kind: BlockType, batch: Batch, how: Arithmetic = FP32
) -> int:
    """Most bytes that one layer holds during its own backward pass, what it saved included.

    The second half comes first, beside everything saved. Experts: gradients of input and output
    (2 X) and 3 F a routed token, without kernels 6 F. Then attention, beside what it saved itself.
    Lightning: gradients of q, k, v (3 W), of the gate (W) and of the whole projection (4 W), and
    the part that the operator works on. Softmax: gradients of output, of q, k, v and of the
    projection (8 W). Either passes on the gradient of the stream (X).
    """
    width = config.num_heads * config.head_dim
    attention = batch.size * how.item * 8 * width
    if kind == "lightning":
        saved = _lightning_saved(config, batch, how)
        attention += _lightning_part(config, batch, backward=True)
    else:
        saved = _softmax_saved(config, batch, how)
    inner = (3 if how.fused else 6) * config.expert_hidden_size
    routed = config.experts_per_token * (2 * config.hidden_size + inner)
    experts = _mlp_saved(config, batch, how) + batch.size * how.item * routed
    stream = batch.size * how.item * config.hidden_size
    return saved + max(attention, experts) + stream + layer_held(config, kind, batch)


def logit_bytes(config: ModelConfig, batch: Batch) -> int:
    """Logits of one chunk of tokens, their probabilities and a product for the entropy, in fp32."""
    chunk = min(batch.size, max(64, LOGIT_ELEMENTS // config.vocab_size))
    return 3 * 4 * chunk * config.vocab_size


def training_peak(
    config: ModelConfig, batch: Batch, how: Arithmetic = FP32, checkpointed: bool = False
) -> int:
    """Most bytes of activations at any time of a forward and backward pass.

    Layer by layer from the last to the first: what all layers up to it saved, and its own backward
    pass. Checkpointed layers save their input only (w X a token), and all of it again while their
    own backward pass runs.
    """
    stream = batch.size * how.item * config.hidden_size
    fixed = ends_saved(config, batch, how) + layout_held(config, batch)
    saved = [
        layer_saved(config, kind, batch, how) + layer_held(config, kind, batch)
        for kind in config.block_types
    ]
    kept = [stream] * len(saved) if checkpointed else saved
    peaks = [sum(kept) + max(logit_bytes(config, batch), _visibility(config, batch))]
    for layer, kind in enumerate(config.block_types):
        beside = sum(kept[: layer + 1]) if checkpointed else sum(kept[:layer])
        peaks.append(beside + layer_backward(config, kind, batch, how))
    return fixed + max(peaks)


def recomputed_layer(config: ModelConfig, batch: Batch, how: Arithmetic = FP32) -> int:
    """The largest layer's saved tensors and backward pass, which a recomputation makes anew."""
    return max(layer_backward(config, kind, batch, how) for kind in set(config.block_types))


def forward_peak(config: ModelConfig, batch: Batch, item: int = 4) -> int:
    """Most bytes of a forward pass that keeps nothing, as prefill is: one layer's work.

    Lightning: projection (4 W), output, and what is made of it (3 W), states (4 W D a chunk), and
    the part that the operator works on. Softmax: projection, operands, result. Experts: input,
    output, and four of the width F a routed token.
    """
    width = config.num_heads * config.head_dim
    inner = config.experts_per_token * (2 * config.hidden_size + 4 * config.expert_hidden_size)
    peaks = [batch.size * item * (inner + 2 * config.hidden_size)]
    if "lightning" in config.block_types:
        count, _ = _chunks(config, batch)
        states = batch.rows * 4 * count * config.head_dim * width
        part = _lightning_part(config, batch, backward=False)
        peaks.append(batch.size * item * 7 * width + states + part)
    if "softmax" in config.block_types:
        kv_width = config.num_kv_heads * config.head_dim
        peaks.append(batch.size * item * (6 * width + 4 * kv_width))
    return max(peaks) + batch.size * item * 3 * config.hidden_size + layout_held(config, batch)


def sequence_state(config: ModelConfig, slots: int, item: int = 4) -> int:
    """What one sequence keeps while it is decoded.

    4 W D a lightning layer whatever its length; keys and values of `slots` tokens (2 w V each) a
    softmax layer.
    """
    width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    states = config.block_types.count("lightning") * 4 * width * config.head_dim
    return states + config.block_types.count("softmax") * 2 * slots * kv_width * item


def decode_bytes(
    config: ModelConfig, rows: int, prompt_tokens: int, new_tokens: int, item: int = 4
) -> int:
    """Memory of `rows` sequences decoded to their full length, and of one step.

    The cache has room for the prompt and 64 tokens, and doubles until the last token fits. A step
    holds three arrays of scores (H x length in fp32), and sampling holds logits, log-probabilities
    and probabilities in fp32 (3 x 4) and two arrays in fp64 (2 x 8), a token of the vocabulary.
    """
    start, longest = prompt_tokens + 64, prompt_tokens + new_tokens
    slots = start * 2 ** max(0, math.ceil(math.log2(longest / start)))
    scores = 12 * config.num_heads * longest if "softmax" in config.block_types else 0
    sampling = config.vocab_size * (3 * 4 + 2 * 8)
    return rows * (sequence_state(config, slots, item) + max(scores, sampling))


def prefill_bytes(config: ModelConfig, prompts: int, prompt_tokens: int, item: int = 4) -> int:
    """Memory of reading `prompts` prompts in one pass: the pass, and the states that it returns."""
    states = prompts * sequence_state(config, prompt_tokens, item)
    return states + forward_peak(config, Batch(prompts, prompt_tokens), item)
