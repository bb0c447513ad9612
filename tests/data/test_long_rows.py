import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.data.long_rows import long_context_rows
from longstride.data.packing import pack_documents
from longstride.errors import DataError
from longstride.store.files import read_jsonl
from schemas.rows import Document, PackedRow


def document(path, words, source="prose"):
    text = " ".join(f"word {path} {i}" for i in range(words))
    return Document(id=f"{source}/{path}", text=text, domain="web", source=source, path=path)


def long_share_of(rows, window):
    tokens = [len(s.tokens) for row in rows for s in row if 2 * len(s.tokens) >= window]
    return sum(tokens) / (len(rows) * window)


@settings(max_examples=25, deadline=None)
@given(
    words=st.lists(st.integers(1, 60), min_size=20, max_size=40),
    window=st.sampled_from([32, 100, 256]),
    share=st.floats(0.05, 1.0),
)
def test_rows_are_full_keep_the_promised_share_and_every_token(tokenizer, words, window, share):
    documents = [document(f"{i:03d}", count) for i, count in enumerate(words)]
    total = sum(len(tokenizer.encode(d.text)) + 1 for d in documents)
    try:
        rows, left_over = long_context_rows(documents, tokenizer, window, 10**6, share)
    except DataError as error:
        assert "raise data.characters" in str(error)
        return
    assert all(sum(len(s.tokens) for s in row) == window for row in rows)
    assert long_share_of(rows, window) >= share
    gaps = sum(
        len(tokenizer.encode("\n\n")) - 1
        for name in {s.document for row in rows for s in row if s.document.startswith("joined:")}
        for _ in range(name.count("+"))
    )
    assert abs(len(rows) * window + left_over - total - gaps) <= len(documents)


def test_long_documents_are_preferred_and_short_ones_still_occur(tokenizer):
    documents = [document(f"l{i}", 120) for i in range(6)]
    documents += [document(f"s{i}", 4) for i in range(300)]
    rows, _ = long_context_rows(documents, tokenizer, 256, 30, 0.4)
    share = long_share_of(rows, 256)
    assert 0.4 <= share < 0.6
    assert not any("joined:" in s.document for row in rows for s in row)


def test_neighbours_of_one_source_are_joined_when_single_documents_are_too_short(
    publish_documents, tokenizer, tmp_path
):
    triples = [
        (source, f"{i:03d}.txt", document(f"{i:03d}", 8).text + source)
        for source in ("a", "b")
        for i in range(40)
    ]
    folder = publish_documents(*triples)
    manifest = pack_documents(
        folder, tokenizer, 256, 3_000, 1, tmp_path / "o", "extend-1", long_share=0.5
    )
    rows = list(read_jsonl(tmp_path / "o" / "rows.jsonl", PackedRow))
    joined = [name for row in rows for name in row.documents if name.startswith("joined:")]
    assert joined and manifest.counts["padding_tokens"] == 0
    for name in joined:
        parts = name.removeprefix("joined:").split("+")
        numbers = [int(part[2:5]) for part in parts]
        assert numbers == list(range(numbers[0], numbers[0] + len(parts)))
        assert len({part[0] for part in parts}) == 1


def test_a_share_that_cannot_be_met_is_refused_with_the_figures(tokenizer):
    documents = [document("only", 3, source=f"source-{i}") for i in range(20)]  # none to join with
    with pytest.raises(DataError, match=r"long_share=0\.5 of 2 rows x 128 tokens needs 128 tokens"):
        long_context_rows(documents, tokenizer, 128, 2, 0.5)
