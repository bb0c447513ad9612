"""Waste against another algorithm, lengths by domain, and key-value probes."""

import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from data_parts import make_recipe
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from longstride.data.long_rows import long_context_rows
from longstride.data.packing import best_fit, encode, pack_documents
from longstride.data.packing_summary import (
    BUCKETS,
    PackingSummary,
    by_length,
    length_mixtures,
    packing_summary,
)
from longstride.data.probes import probe_documents
from longstride.data.rows import Segment
from longstride.errors import DataError
from longstride.store.files import read_json, read_jsonl
from schemas.data import ProbeConfig
from schemas.rows import Document, PackedRow


def segments_of(lengths):
    return [Segment(f"e{i}", "web", [i] * n, [1] * n, False) for i, n in enumerate(lengths)]


def first_fit_decreasing(lengths, window):
    rooms = []
    for length in sorted(lengths, reverse=True):
        for index, room in enumerate(rooms):
            if room >= length:
                rooms[index] -= length
                break
        else:
            rooms.append(window - length)
    return len(rooms)


@given(
    lengths=st.lists(st.integers(1, 100), min_size=1, max_size=120), window=st.integers(100, 150)
)
def test_best_fit_needs_no_more_rows_than_first_fit_decreasing(lengths, window):
    rows = len(best_fit(segments_of(lengths), window))
    assert rows <= math.ceil(1.01 * first_fit_decreasing(lengths, window))
    assert rows >= math.ceil(sum(lengths) / window)


@pytest.mark.parametrize("seed", range(3))
def test_the_waste_of_many_conversations_is_small_and_reported(seed):
    rng = random.Random(seed)
    lengths = [min(2048, int(rng.lognormvariate(5.8, 0.9)) + 1) for _ in range(4_000)]
    rows = best_fit(segments_of(lengths), 2048)
    summary = packing_summary(rows, 2048, counts={"dropped_too_long": 3})
    assert len(rows) <= 1.01 * first_fit_decreasing(lengths, 2048)
    assert summary.waste == pytest.approx(1 - sum(lengths) / (2048 * len(rows)))
    assert summary.waste < 0.01
    assert (summary.segments, summary.split_share, summary.dropped_too_long) == (4_000, 0.0, 3)


def test_length_mixtures_are_token_shares_with_the_smoothed_divergence():
    source = by_length([("code", 10), ("code", 10), ("code", 80), ("web", 300)])
    packed = by_length([("code", 10), ("code", 80), ("code", 100)])
    (found,) = length_mixtures(packed, source, 100).values()
    assert found.source == dict(zip(BUCKETS, [0.2, 0, 0, 0.8, 0], strict=True))
    expected = dict(zip(BUCKETS, [10 / 190, 0, 0, 80 / 190, 100 / 190], strict=True))
    assert found.packed == pytest.approx(expected)
    p = np.array([10.5, 0.5, 0.5, 80.5, 100.5])
    q = np.array([20.5, 0.5, 0.5, 80.5, 0.5])
    p, q = p / p.sum(), q / q.sum()
    assert found.kl == pytest.approx((p * np.log(p / q)).sum())


def document(source, number, words):
    text = " ".join(f"{source} {number} {i}" for i in range(words))
    path = f"{number:04d}"
    domain = {"a": "book", "b": "code"}[source]
    return Document(id=f"{source}/{path}", text=text, domain=domain, source=source, path=path)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.floats(0.1, 0.5))
def test_long_segments_come_from_every_domain_and_its_share_stays(tokenizer, seed, share):
    rng = random.Random(seed)
    # Books have the longest documents, but code has long ones too.
    documents = [document("a", i, rng.choice([5, 200])) for i in range(40)]
    documents += [document("b", i, rng.choice([5, 60])) for i in range(130)]
    rng.shuffle(documents)
    window = 256
    rows, _ = long_context_rows(documents, tokenizer, window, 40, share)
    corpus = Counter()
    for d in documents:
        corpus[d.domain] += len(tokenizer.encode(d.text)) + 1
    long = defaultdict(int)
    for row in rows:
        for segment in row:
            if 2 * len(segment.tokens) >= window:
                long[segment.domain] += len(segment.tokens)
    wanted = share * len(rows) * window
    for domain, tokens in corpus.items():
        assert long[domain] >= wanted * tokens / corpus.total() - window


def corpus_of(publish, documents=60, words=60):
    rng = random.Random(3)
    return publish(*[
        ("prose", f"{i:03d}.txt", " ".join(f"{i * j} river" for j in range(rng.randint(5, words))))
        for i in range(documents)
    ])  # fmt: skip


def test_the_summary_of_a_stage_compares_lengths_with_the_corpus(
    publish_documents, tokenizer, tmp_path
):
    folder = corpus_of(publish_documents)
    pack_documents(folder, tokenizer, 256, 4_000, 1, tmp_path / "o", "extend-1", long_share=0.4)
    summary = read_json(tmp_path / "o" / "summary.json", PackingSummary)
    documents = list(read_jsonl(folder / "documents.jsonl", Document))
    lengths = [len(tokenizer.encode(d.text)) + 1 for d in documents]
    long = sum(n for n in lengths if n >= 256) / sum(lengths)
    assert summary.lengths["web"].source["1"] == pytest.approx(long)
    assert sum(summary.lengths["web"].packed.values()) == pytest.approx(1)
    assert summary.planned_tokens == 4_000 and summary.waste == 0
    assert summary.domain_shares == {"web": 1.0}


CONFIG = ProbeConfig(
    per_cell=3, length_shares=[0.5, 1.0], depths=[0.0, 0.5, 1.0], maximum_share=0.9
)


def test_every_cell_has_its_probes_and_every_probe_says_its_value_at_its_depth(
    publish_documents, tokenizer, tmp_path
):
    folder = corpus_of(publish_documents)
    pack_documents(
        folder, tokenizer, 256, 9_000, 1, tmp_path / "o", "extend-1", long_share=0.3, probes=CONFIG
    )
    summary = read_json(tmp_path / "o" / "summary.json", PackingSummary)
    assert summary.probes == {f"{s}/{d}": 3 for s in ("0.5", "1") for d in ("0", "0.5", "1")}
    tensors = load_file(tmp_path / "o" / "packed.safetensors")
    found = Counter()
    for number, row in enumerate(read_jsonl(tmp_path / "o" / "rows.jsonl", PackedRow)):
        assert row.padding_tokens == 0
        for index, name in enumerate(row.documents):
            if not name.startswith("probe:"):
                continue
            cell = name.removeprefix("probe:").rsplit("/", 1)[0]
            share, depth = map(float, cell.split("/"))
            inside = tensors["segments_NT"][number] == index
            tokens = tensors["tokens_NT"][number][inside].tolist()
            assert len(tokens) == share * 256 and tokens[-1] == tokenizer.eos_id
            text = tokenizer.decode(tokens[:-1])
            line = text.rsplit("\n", 1)[1]
            assert text.count(f"\n{line}") == 2
            before = len(tokenizer.encode(text[: text.index(f"\n{line}\n")]))
            assert before / len(tokens) == pytest.approx(depth * (1 - 32 / len(tokens)), abs=0.13)
            found[cell] += 1
    assert found == summary.probes


def test_probes_are_the_same_for_the_same_seed(tokenizer):
    texts = [encode(document("a", i, 100), tokenizer) for i in range(5)]
    one, other = (probe_documents(CONFIG, tokenizer, texts, 256, seed)[0] for seed in (1, 2))
    assert probe_documents(CONFIG, tokenizer, texts, 256, 1)[0] == one != other


@pytest.mark.parametrize(
    ("window", "tokens", "config", "problem"),
    [
        (32, 9_000, CONFIG, "leave probes out of stages with windows this short"),
        (256, 2_000, ProbeConfig(per_cell=3, length_shares=[1.0]), "more than maximum_share=0.2"),
    ],
)
def test_probes_that_do_not_fit_are_refused(
    publish_documents, tokenizer, tmp_path, window, tokens, config, problem
):
    folder = corpus_of(publish_documents)
    with pytest.raises(DataError, match=problem):
        pack_documents(
            folder, tokenizer, window, tokens, 1, tmp_path / "o", "extend-1", probes=config
        )


def test_depths_and_lengths_are_shares():
    with pytest.raises(ValueError, match="give shares between 0 and 1"):
        ProbeConfig(depths=[1.5])
    with pytest.raises(ValueError, match="give shares between 0 and 1"):
        ProbeConfig(length_shares=[0.0])


def test_a_recipe_may_ask_for_probes_in_one_stage_only(prose_folder):
    stage = {"rope_base": 20_000, "tokens": 8_000, "learning_rate": 1e-3}
    stages = [{"window": 128, **stage}, {"window": 256, **stage, "probes": {"per_cell": 2}}]
    recipe = make_recipe(prose_folder, extension=stages)
    assert recipe.extension[0].probes is None and recipe.extension[1].probes.per_cell == 2
