import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from longstride.data.packing import best_fit, fill_rows, pack_documents
from longstride.data.rows import Encoded, Segment
from longstride.errors import DataError
from longstride.store.artifacts import open_artifact
from longstride.store.files import read_jsonl
from schemas.rows import PackedRow

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def documents_of(lengths):
    """Documents whose tokens are all different, so that none can be lost or doubled unseen."""
    starts = np.cumsum([0, *lengths])
    return [
        Encoded(f"d{i}", "web", list(range(starts[i], starts[i + 1]))) for i in range(len(lengths))
    ]


@given(lengths=LENGTHS, window=st.integers(2, 40), rows=st.integers(1, 50))
def test_cutting_keeps_every_token_once_and_in_order(lengths, window, rows):
    documents = documents_of(lengths)
    packed, left_over = fill_rows([[] for _ in range(rows)], documents, window)
    flat = [token for row in packed for segment in row for token in segment.tokens]
    assert all(sum(len(s.tokens) for s in row) == window for row in packed)
    assert flat == list(range(len(flat)))
    assert len(flat) + left_over == sum(lengths)
    assert len(packed) == min(rows, sum(lengths) // window)


@given(lengths=LENGTHS, window=st.integers(2, 40))
def test_only_the_last_segment_of_a_row_is_cut_and_the_first_token_is_no_target(lengths, window):
    packed, _ = fill_rows([[] for _ in range(2500 // window)], documents_of(lengths), window)
    ends = set(np.cumsum(lengths) - 1)
    for row in packed:
        for segment in row:
            assert segment.mask == [0] + [1] * (len(segment.tokens) - 1)
            assert segment.truncated == (segment.tokens[-1] not in ends)
        assert not any(segment.truncated for segment in row[:-1])


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_best_fit_splits_nothing_loses_nothing_and_overfills_nothing(lengths):
    segments = [Segment(f"e{i}", "web", [i] * n, [1] * n, False) for i, n in enumerate(lengths)]
    rows = best_fit(segments, 30)
    used = [segment for row in rows for segment in row]
    assert sorted(used, key=lambda s: s.tokens[0]) == segments
    totals = [sum(len(s.tokens) for s in row) for row in rows]
    assert max(totals) <= 30
    # Best fit never leaves two rows that would fit into one.
    assert len(totals) < 2 or sum(sorted(totals)[:2]) > 30


def texts(count, words):
    return [
        ("prose", f"p/{i:03d}.txt", f"document {i}: " + " ".join(f"{i * j}" for j in range(words)))
        for i in range(count)
    ]


def pack(folder, tokenizer, out, window=32, tokens=1_000, seed=3, **options):
    return pack_documents(folder, tokenizer, window, tokens, seed, out, "pretrain", **options)


def test_tensors_agree_with_each_other_and_with_the_rows(publish_documents, tokenizer, tmp_path):
    manifest = pack(publish_documents(*texts(30, 12)), tokenizer, tmp_path / "out")
    assert open_artifact(tmp_path / "out", "packed") == manifest
    tensors = load_file(tmp_path / "out" / "packed.safetensors")
    rows = list(read_jsonl(tmp_path / "out" / "rows.jsonl", PackedRow))
    assert {name: (t.dtype.name, t.shape) for name, t in tensors.items()} == {
        "tokens_NT": ("int32", (32, 32)),
        "segments_NT": ("int32", (32, 32)),
        "positions_NT": ("int32", (32, 32)),
        "loss_mask_NT": ("uint8", (32, 32)),
    }
    for number, row in enumerate(rows):
        segments_T, positions_T = tensors["segments_NT"][number], tensors["positions_NT"][number]
        assert segments_T.max() + 1 == len(row.documents)
        for index in range(len(row.documents)):
            positions = positions_T[segments_T == index]
            assert positions.tolist() == list(range(len(positions)))
        assert (np.diff(segments_T) >= 0).all()
        mask_T = tensors["loss_mask_NT"][number]
        assert ((positions_T == 0) == (mask_T == 0)).all()
        assert row.target_tokens == mask_T.sum() and row.padding_tokens == 0


def test_every_document_ends_with_the_end_token_and_decodes_to_its_text(
    publish_documents, tokenizer, tmp_path
):
    originals = texts(6, 12)
    pack(publish_documents(*originals), tokenizer, tmp_path / "out", window=16, tokens=10_000)
    tokens = load_file(tmp_path / "out" / "packed.safetensors")["tokens_NT"].ravel()
    found = tokenizer.decode(tokens.tolist(), keep_end=True).split("<|end_of_text|>")
    assert set(found[:-1]) <= {text for _, _, text in originals}
    assert len(found) >= 6


def test_the_same_seed_packs_the_same_bytes(publish_documents, tokenizer, tmp_path):
    folder = publish_documents(*texts(30, 12))
    first = pack(folder, tokenizer, tmp_path / "a")
    assert pack(folder, tokenizer, tmp_path / "b").files == first.files
    assert pack(folder, tokenizer, tmp_path / "c", seed=4).files != first.files


def test_a_short_corpus_gives_one_pass_and_counts_the_rest(publish_documents, tokenizer, tmp_path):
    folder = publish_documents(*texts(5, 12))
    counts = pack(folder, tokenizer, tmp_path / "out", tokens=1_000_000).counts
    total = sum(len(tokenizer.encode(text)) + 1 for _, _, text in texts(5, 12))
    assert counts["tokens"] + counts["left_over_tokens"] == total
    assert counts["left_over_tokens"] < 32


def test_a_corpus_shorter_than_one_row_is_refused(publish_documents, tokenizer, tmp_path):
    folder = publish_documents(("prose", "a.txt", "short"))
    with pytest.raises(DataError, match="fewer tokens than one row of window=4096"):
        pack(folder, tokenizer, tmp_path / "out", window=4096)


def test_a_corpus_that_was_changed_after_publishing_is_refused(
    publish_documents, tokenizer, tmp_path
):
    folder = publish_documents(*texts(5, 12))
    with (folder / "documents.jsonl").open("a") as stream:
        stream.write("{}\n")
    with pytest.raises(DataError, match=r"documents\.jsonl has .* truncated"):
        pack(folder, tokenizer, tmp_path / "out")
