"""E2: packed rows before continual pretraining or a context-extension stage."""

from __future__ import annotations

from collections import Counter

from longstride.quality.frame import Measured, RowFacts, Tally
from longstride.quality.measure_documents import mixture_facts
from longstride.quality.packed_rows import base_facts, read_packed, segment_lengths
from longstride.quality.stages import packed_stage
from longstride.quality.subject import Subject, reference_faults
from schemas.stages import ExtensionStage


def measure(subject: Subject) -> Measured:
    """Measure packed rows; the reference is the tokenizer.

    Raises:
        DataError: The artifact cannot be read, or has no rows.
        GateCouldNotRun: The tokenizer cannot be used, or the stage is none of the recipe's.
    """
    from longstride.tokens.tokenizer import Tokenizer

    with reference_faults("the tokenizer"):
        tokenizer = Tokenizer.load(subject.against)
    settings = packed_stage(subject.recipe, subject.stage)
    packed = read_packed(subject.path)
    rows: list[RowFacts] = base_facts(packed, tokenizer.vocab_size)
    tally = Tally()
    lengths = [segment_lengths(packed, number) for number in range(len(rows))]
    for record in packed.records:
        tally.flag("split_share", record.id, record.truncated_documents > 0)
    long_tokens = sum(int(row[2 * row >= packed.window].sum()) for row in lengths)
    tokens = sum(int(row.sum()) for row in lengths)
    long_share = long_tokens / max(1, tokens)
    domains: Counter[str] = Counter()
    for record in packed.records:
        domains.update(record.domain_tokens)
    extension = settings if isinstance(settings, ExtensionStage) else None
    wanted = extension.long_share if extension else None
    mixture = extension.mixture if extension else None
    recorded = subject.subject.manifest.parents.get("tokenizer")
    summary: RowFacts = {
        "window_ratio": packed.window / settings.window,
        "tokens_ratio": tokens / settings.tokens,
        "long_share": long_share,
        "long_share_gap": None if wanted is None else long_share - wanted,
        "end_of_text_tokens": int((packed.tokens_NT == tokenizer.eos_id).sum()),
        "split_share": tally.share("split_share", len(rows)),
        "mixture_kl": mixture_facts(domains, subject.recipe, mixture)["mixture_kl"],
        "tokenizer_matches": recorded in (None, tokenizer.digest),
    }
    return Measured(rows, summary, tally.culprits)
