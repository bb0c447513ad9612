"""What a checkpoint makes of its context: perplexity by position, and retrieval of a passkey.

Legend: B rows, T tokens, K tokens of a key, V vocabulary.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise

import torch
from torch import Tensor

from longstride.evals.passkey import PasskeyRow, cell_name
from longstride.model.hybrid import HybridModel
from longstride.model.logprobs import token_logprobs
from longstride.training.engine import Engine
from longstride.training.packed import PackedRows

_FIRST_BUCKET = 16
_MOST_BUCKETS = 8
_LARGEST_EXPONENT = 700.0
"""exp of more overflows."""


def position_edges(window: int) -> list[int]:
    """Edges of the position buckets of a window: 0, then doublings that end at the window.

    At most eight buckets, and none narrower than 16 positions.
    """
    edges = [window]
    while len(edges) < _MOST_BUCKETS and edges[0] // 2 >= _FIRST_BUCKET:
        edges.insert(0, edges[0] // 2)
    return [0, *edges]


@torch.no_grad()
def position_perplexity(
    engine: Engine, rows: PackedRows, microbatch_tokens: int
) -> dict[str, float]:
    """Perplexity of the targets by their position in their own document.

    Returns:
        `positions_<first>_<end>` -> perplexity; a bucket without targets is left out.
    """
    edges = position_edges(rows.window)
    bounds = torch.tensor(edges[1:-1])
    sums = torch.zeros(2, len(edges) - 1, dtype=torch.float64)
    parts: Iterable[PackedRows] = rows.microbatches(microbatch_tokens) if rows.rows else ()
    for part, weight in engine.ranks.share(parts):
        sums += weight * engine.forward(partial(_sums, part=part, bounds=bounds))
    totals = engine.ranks.total(sums.flatten().tolist())
    losses, counts = totals[: len(edges) - 1], totals[len(edges) - 1 :]
    return {
        f"positions_{first}_{end}": math.exp(min(_LARGEST_EXPONENT, loss / count))
        for (first, end), loss, count in zip(pairwise(edges), losses, counts, strict=True)
        if count
    }


def _sums(model: HybridModel, part: PackedRows, bounds: Tensor) -> Tensor:
    """Summed negative log-likelihood, and number, of the targets of each bucket, [2, buckets]."""
    there = part.to(model.embed.weight.device)
    output = model(there.tokens_NT, there.segments_NT, there.positions_NT)
    logp_BT, _ = token_logprobs(model, output.hidden_BTD[:, :-1], there.tokens_NT[:, 1:])
    wanted_BT = part.loss_mask_NT[:, 1:]
    bucket = torch.bucketize(part.positions_NT[:, 1:][wanted_BT], bounds, right=True)
    sums = torch.zeros(2, len(bounds) + 1, dtype=torch.float64)
    sums[0].index_add_(0, bucket, -logp_BT.cpu()[wanted_BT].double())
    sums[1].index_add_(0, bucket, torch.ones(len(bucket), dtype=torch.float64))
    return sums


@torch.no_grad()
def passkey_scores(
    engine: Engine, rows: Sequence[PasskeyRow], microbatch_tokens: int
) -> dict[str, float]:
    """Teacher-forced retrieval by cell of length and depth.

    Returns:
        `<cell>/accuracy`, the share of key tokens that are the model's first choice;
        `<cell>/rank`, the mean rank of the right token among those that random keys have there
        (1 is best, 5.5 is chance among ten digits); and `<cell>/margin`, its log-probability less
        their mean (nats; chance is 0), which says something even of a model that never retrieves.
    """
    batches = list(_batches(rows, microbatch_tokens))
    cells = sorted({(row.length, row.depth) for row in rows})
    place = {cell: index for index, cell in enumerate(cells)}
    sums = torch.zeros(len(cells), 4, dtype=torch.float64)
    for batch, weight in engine.ranks.share(batches) if batches else ():
        logp_BKV = engine.forward(partial(_key_logprobs, batch=batch))
        for row, logp_KV in zip(batch, logp_BKV, strict=True):
            sums[place[row.length, row.depth]] += weight * _score(row, logp_KV)
    totals = torch.tensor(engine.ranks.total(sums.flatten().tolist()), dtype=torch.float64)
    scores = {}
    for cell, (tokens, right, ranks, margin) in zip(
        cells, totals.view(-1, 4).tolist(), strict=True
    ):
        name = cell_name(*cell)
        scores[f"{name}/accuracy"] = right / tokens
        scores[f"{name}/rank"] = ranks / tokens
        scores[f"{name}/margin"] = margin / tokens
    return scores


def _batches(rows: Sequence[PasskeyRow], tokens: int) -> Iterator[list[PasskeyRow]]:
    """Rows of equal length, and with keys of equally many tokens, as many as fit."""
    groups = defaultdict(list)
    for row in rows:
        groups[row.length, len(row.key)].append(row)
    for (length, _), group in sorted(groups.items()):
        size = max(1, tokens // length)
        for _, numbered in groupby(enumerate(group), key=lambda pair: pair[0] // size):
            yield [row for _, row in numbered]


def _key_logprobs(model: HybridModel, batch: Sequence[PasskeyRow]) -> Tensor:
    """Log-probabilities over the vocabulary at each token of the key, [B, K, V] on the CPU."""
    device = model.embed.weight.device
    tokens_BT = torch.tensor([row.tokens for row in batch], device=device)
    keys = len(batch[0].key)
    hidden_BTD = model(tokens_BT).hidden_BTD[:, -keys - 1 : -1]
    logits_BKV: Tensor = model.logits(hidden_BTD)
    return logits_BKV.log_softmax(-1).cpu()


def _score(row: PasskeyRow, logp_KV: Tensor) -> Tensor:
    """Tokens, tokens that come first, sum of ranks, sum of margins; fp64."""
    right = ranks = 0
    margin = 0.0
    for token, rivals, logp_V in zip(row.key, row.rivals, logp_KV, strict=True):
        own, others = float(logp_V[token]), logp_V[torch.tensor(rivals, dtype=torch.long)]
        right += int(logp_V.argmax()) == token
        ranks += 1 + int((others > own).sum())
        margin += own - float(others.mean()) if rivals else 0.0
    return torch.tensor([len(row.key), right, ranks, margin], dtype=torch.float64)
