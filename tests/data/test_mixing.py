from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.data.mixing import documents_for_mixture
from longstride.data.packing import pack_documents
from longstride.errors import DataError
from longstride.store.artifacts import publish
from longstride.store.files import read_jsonl, write_jsonl
from schemas.rows import Document, PackedRow

DOMAINS = ("code", "book", "web")


def document(domain, number, words):
    text = " ".join(f"{domain} {number} {i}" for i in range(words))
    name = f"{domain}/{number:04d}"
    return Document(id=name, text=text, domain=domain, source=domain, path=name)


def corpus(words_by_domain):
    found = [
        document(domain, number, words)
        for domain, counts in words_by_domain.items()
        for number, words in enumerate(counts)
    ]
    return sorted(found, key=lambda d: d.text[::-1])


def shares_of(documents, tokenizer):
    counts = Counter()
    for d in documents:
        counts[d.domain] += len(tokenizer.encode(d.text)) + 1
    total = sum(counts.values())
    return {domain: count / total for domain, count in counts.items()}, total


COUNTS = st.lists(st.integers(1, 12), min_size=60, max_size=90)


@settings(max_examples=20, deadline=None)
@given(
    words=st.fixed_dictionaries(dict.fromkeys(DOMAINS, COUNTS)),
    weights=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    long_share=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_domains_stand_in_the_wanted_shares_whatever_the_corpus_has(
    tokenizer, words, weights, long_share
):
    documents = corpus(words)
    mixture = {d: w / sum(weights) for d, w in zip(DOMAINS, weights, strict=True)}
    chosen = documents_for_mixture(documents, tokenizer, mixture, 2_000, 64, long_share)
    shares, total = shares_of(chosen, tokenizer)
    # Whole documents: each domain may miss its quota by less than its longest document.
    longest = max(len(tokenizer.encode(d.text)) + 1 for d in documents)
    for domain, share in mixture.items():
        assert abs(shares[domain] - share) <= 3 * longest / total
    assert total <= 2_000
    assert [d.id for d in documents if d in chosen] == [d.id for d in chosen]


def test_a_domain_that_is_short_makes_the_selection_smaller_and_keeps_the_shares(tokenizer):
    documents = corpus({"code": [3] * 10, "web": [3] * 1000})
    chosen = documents_for_mixture(documents, tokenizer, {"code": 0.5, "web": 0.5}, 10**5, 64)
    assert Counter(d.domain for d in chosen) == pytest.approx({"code": 10, "web": 10}, abs=2)


def test_long_documents_come_first_up_to_the_long_share(tokenizer):
    documents = corpus({"code": [2] * 400 + [40] * 40})
    few, many = (
        documents_for_mixture(documents, tokenizer, {"code": 1.0}, 2_000, 128, share)
        for share in (0.1, 0.9)
    )
    count = [sum(len(d.text) > 200 for d in chosen) for chosen in (few, many)]
    assert count[1] > count[0]


def test_a_domain_that_the_corpus_lacks_is_named(tokenizer):
    with pytest.raises(DataError, match=r"asks for stem, but the corpus has no document"):
        documents_for_mixture(
            corpus({"web": [3] * 5}), tokenizer, {"stem": 0.5, "web": 0.5}, 100, 32
        )


def test_packed_rows_of_a_stage_follow_its_own_mixture(tokenizer, tmp_path):
    folder = tmp_path / "documents"
    write_jsonl(folder / "documents.jsonl", corpus({"code": [9] * 200, "web": [9] * 800}))
    publish(folder, "documents", "corpus")
    mixture = {"code": 0.6, "web": 0.4}
    manifest = pack_documents(
        folder, tokenizer, 128, 6_000, 3, tmp_path / "o", "extend-1", long_share=0.4,
        mixture=mixture,
    )  # fmt: skip
    rows = list(read_jsonl(tmp_path / "o" / "rows.jsonl", PackedRow))
    counts = Counter()
    for row in rows:
        counts.update(row.domain_tokens)
    assert manifest.counts["rows"] == 47
    assert counts["code"] / counts.total() == pytest.approx(0.6, abs=0.02)
