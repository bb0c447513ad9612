"""E2: packed rows before continual pretraining or a context-extension stage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

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
    manifest = subject.subject.manifest
    recorded = manifest.parents.get("tokenizer")
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
        "domain_length_kl": domain_length_kl(manifest.counts),
        "fewest_needles": fewest_needles(manifest.counts),
        "tokenizer_matches": recorded in (None, tokenizer.digest),
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


def domain_length_kl(counts: Mapping[str, int]) -> float | None:
    """Largest KL, over domains, of the packed length mix from the source's; None: not recorded.

    The packer records tokens as `packed_length/<domain>/<bucket>` and
    `source_length/<domain>/<bucket>` in its manifest.
    """
    tables: dict[str, dict[str, dict[str, int]]] = {"packed_length": {}, "source_length": {}}
    for key, value in counts.items():
        kind, _, rest = key.partition("/")
        domain, _, bucket = rest.partition("/")
        if kind in tables and bucket:
            tables[kind].setdefault(domain, {})[bucket] = value
    packed, source = tables["packed_length"], tables["source_length"]
    if not packed or not source:
        return None
    return max(_kl(packed[domain], source.get(domain, {})) for domain in packed)


def _kl(actual: Mapping[str, int], target: Mapping[str, int]) -> float:
    total, wanted = sum(actual.values()), sum(target.values())
    divergence = 0.0
    for bucket, count in actual.items():
        if count:
            share, aim = count / total, target.get(bucket, 0) / max(1, wanted)
            divergence += share * math.log(share / aim) if aim > 0 else math.inf
    return divergence


def fewest_needles(counts: Mapping[str, int]) -> int | None:
    """Key-value probes in the emptiest cell of depth x length; None: the stage inserts none.

    The packer records them as `needles/<length>/<depth>` in its manifest.
    """
    cells = [value for key, value in counts.items() if key.startswith("needles/")]
    return min(cells) if cells else None
