"""Reflection words are found on bytes, however they were cut into tokens."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longstride.rl.reflection import ReflectionMatcher
from longstride.tokens.tokenizer import Tokenizer
from schemas.audit import AuditConfig
from schemas.model import TokenizerConfig

BUCKETS = {"wait": ["wait", "hold on"], "recheck": ["double-check"], "chinese": ["等等"]}


def matcher(pieces, buckets=BUCKETS):
    return ReflectionMatcher(buckets, lambda token: pieces[token])


def found(*pieces):
    return matcher([p.encode() for p in pieces]).find(range(len(pieces)))


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["So ", "Wait", ", no"], [(1, 1, "wait")]),
        (["So", " w", "ai", "t", "."], [(1, 3, "wait")]),
        (["a\nWA", "IT!"], [(0, 1, "wait")]),
        (["hold", " ", "on a second"], [(0, 2, "wait")]),
        (["let me double", "-", "check"], [(0, 2, "recheck")]),
        (["a", "wait"], []),
        (["wait", "er"], []),
        (["await ", "waiting"], []),
        (["wait", " wait"], [(0, 0, "wait"), (1, 1, "wait")]),
        (["嗯等", "等吧"], [(0, 1, "chinese")]),
    ],
)
def test_a_word_is_found_whole_and_in_any_case(pieces, expected):
    assert found(*pieces) == expected


def test_a_character_that_was_cut_between_two_tokens_is_still_found():
    raw = "等等".encode()
    assert matcher([raw[:2], raw[2:]]).find([0, 1]) == [(0, 1, "chinese")]


@pytest.mark.parametrize("text", ["подожди", "Подожди", "ПОДОЖДИ", "ПодОжди"])
def test_letters_beyond_ascii_are_found_in_any_case_too(text):
    found = matcher([b"ok ", text.encode()], {"wait": ["Подожди"]}).find([0, 1])
    assert found == [(1, 1, "wait")]


def test_the_label_of_an_occurrence_is_on_its_first_token_only():
    pieces = [b"so", b" wa", b"it", b" x"]
    assert matcher(pieces).labels([0, 1, 2, 3]) == [-1, 0, -1, -1]


def test_without_words_nothing_is_found():
    assert matcher([b"wait"], {}).labels([0, 0]) == [-1, -1]


@given(st.text(alphabet="wait hold-ckeuxWAIT,.", max_size=60), st.data())
def test_the_cut_into_tokens_does_not_matter(text, data):
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))) | {0, len(raw)})
    pieces = [raw[a:b] for a, b in itertools.pairwise(cuts)]
    words = [w for listed in BUCKETS.values() for w in listed if w.isascii()]
    pattern = r"(?<![a-z0-9])(?:" + "|".join(map(re.escape, words)) + r")(?![a-z0-9])"
    expected = [m.start() for m in re.finditer(pattern, text, re.IGNORECASE)]
    starts = [cuts[first] for first, _, _ in matcher(pieces).find(range(len(pieces)))]
    ends_before = [max(cut for cut in cuts[:-1] if cut <= place) for place in expected]
    assert starts == ends_before


def test_a_trained_tokenizers_bytes_are_those_of_its_text(tmp_path):
    texts = ["Wait, that is wrong. However, é 等等 works. "] * 50
    tokenizer = Tokenizer.train(texts, TokenizerConfig(vocab_size=320), tmp_path)
    ids = tokenizer.encode("Wait, é 等等\n\x00 ok")
    assert b"".join(map(tokenizer.token_bytes, ids)) == "Wait, é 等等\n\x00 ok".encode()
    assert tokenizer.token_bytes(tokenizer.think_id) == b"<think>"
    found = ReflectionMatcher(BUCKETS, tokenizer.token_bytes).find(ids)
    assert [bucket for _, _, bucket in found] == ["wait", "chinese"]


@pytest.mark.parametrize(
    ("buckets", "problem"),
    [
        ({"other": ["x"]}, "other than reflection and other"),
        ({"a b": ["x"]}, "letters, digits"),
        ({"wait": []}, "has no words"),
        ({"wait": [" "]}, "empty word"),
        ({"wait": ["Hmm"], "aha": ["hmm"]}, "belongs to one"),
    ],
)
def test_buckets_that_could_not_be_told_apart_are_refused(buckets, problem):
    with pytest.raises(ValidationError, match=problem):
        AuditConfig(reflection=buckets)
