"""E2: packed rows before continual pretraining or a context-extension stage."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from longstride.data.packing_summary import LONG_BUCKETS, SUMMARY, PackingSummary
from longstride.quality.frame import Columns, Measured, RowFacts, RowWriter, Seen, Tally
from longstride.quality.measure_documents import mixture_facts
from longstride.quality.packed_rows import (
    BASE_COLUMNS,
    Packed,
    base_facts,
    read_blocks,
    segment_lengths,
)
from longstride.quality.stages import packed_stage
from longstride.quality.subject import Subject, reference_faults
from longstride.store.files import read_json
from schemas.stages import ExtensionStage

COLUMNS: Final[Columns] = {
    **BASE_COLUMNS,
    "documents": "count",
    "longest_segment": "count",
    "long_tokens": "count",
    "tokens": "count",
    "truncated": "count",
}


def measure(subject: Subject, writer: RowWriter) -> Measured:
    """Measure packed rows; the reference is the tokenizer.

    Raises:
        DataError: The artifact cannot be read, or has no rows.
        GateCouldNotRun: The tokenizer cannot be used, or the stage is none of the recipe's.
    """
    import polars as pl

    from longstride.tokens.tokenizer import Tokenizer

    with reference_faults("the tokenizer"):
        tokenizer = Tokenizer.load(subject.against)
    settings = packed_stage(subject.recipe, subject.stage)
    tally, seen = Tally(), Seen()
    domains: Counter[str] = Counter()
    ends = window = 0
    for packed in read_blocks(subject.path):
        window = packed.window
        ends += int((packed.tokens_NT == tokenizer.eos_id).sum())
        for number, row in enumerate(base_facts(packed, tokenizer.vocab_size, seen)):
            record = packed.records[number]
            tally.flag("split_share", record.id, record.truncated_documents > 0)
            domains.update(record.domain_tokens)
            writer.append({**row, **_lengths(packed, number)})
    rows = writer.finish()
    found = rows.facts(
        tokens=pl.col("tokens").sum(),
        long=pl.col("long_tokens").sum(),
        truncated=pl.col("truncated").sum(),
        documents=pl.col("documents").sum(),
    )
    tokens = max(1, int(found["tokens"] or 0))
    long_share = int(found["long"] or 0) / tokens
    extension = settings if isinstance(settings, ExtensionStage) else None
    wanted = extension.long_share if extension else None
    parent = subject.subject.manifest.parents.get("tokenizer")
    # A user's own rows may come without what our packer says of them.
    said = subject.path / SUMMARY
    recorded = read_json(said, PackingSummary) if said.is_file() else None
    summary: RowFacts = {
        "window_ratio": window / settings.window,
        "tokens_ratio": int(found["tokens"] or 0) / settings.tokens,
        "long_share": long_share,
        "long_share_gap": None if wanted is None else long_share - wanted,
        "short_share": None if wanted is None else 1.0 - long_share,
        "end_of_text_tokens": ends,
        "split_share": tally.share("split_share", rows.count),
        "truncated_share": int(found["truncated"] or 0) / max(1, int(found["documents"] or 0)),
        "mixture_kl": mixture_facts(
            domains, subject.recipe, extension.mixture if extension else None
        )["mixture_kl"],
        "long_domain_kl": long_domain_kl(recorded) if recorded else None,
        "fewest_probes": fewest_probes(recorded) if recorded else None,
        "tokenizer_matches": parent in (None, tokenizer.digest),
    }
    return Measured(rows, summary, tally.culprits)


def _lengths(packed: Packed, number: int) -> RowFacts:
    lengths = segment_lengths(packed, number)
    return {
        "documents": len(packed.records[number].documents),
        "longest_segment": int(lengths.max(initial=0)),
        "long_tokens": int(lengths[2 * lengths >= packed.window].sum()),
        "tokens": int(lengths.sum()),
        "truncated": packed.records[number].truncated_documents,
    }


def long_domain_kl(summary: PackingSummary) -> float | None:
    """KL of the domains of long text from the domains of all text; None: not recorded.

    Text of half a window or more should come from every domain in proportion, not from books
    alone (Fu et al., arXiv 2402.10171).
    """
    long = {
        domain: summary.domain_shares.get(domain, 0.0)
        * sum(lengths.packed.get(bucket, 0.0) for bucket in LONG_BUCKETS)
        for domain, lengths in summary.lengths.items()
    }
    total = math.fsum(long.values())
    if not total:
        return None
    return math.fsum(
        part / total * math.log(part / total / summary.domain_shares[domain])
        for domain, part in long.items()
        if part
    )


def fewest_probes(summary: PackingSummary) -> int | None:
    """Key-value probes in the emptiest cell of depth x length; None: the stage inserts none."""
    return min(summary.probes.values(), default=None)
