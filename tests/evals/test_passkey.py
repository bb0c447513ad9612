from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.evals.passkey import KEY_DIGITS, passkey_rows
from longstride.tokens.tokenizer import Tokenizer
from schemas.model import TokenizerConfig

FILLER = "the river runs past the mill and under the old bridge, where nobody fishes. " * 40


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([FILLER] * 3, TokenizerConfig(vocab_size=320), Path(mkdtemp()))


@settings(max_examples=40, deadline=None)
@given(window=st.integers(30, 700), samples=st.integers(1, 3), seed=st.integers(0, 99))
def test_every_row_has_its_length_its_key_once_in_the_text_and_once_at_the_end(
    tokenizer, window, samples, seed
):
    rows = passkey_rows(tokenizer, tokenizer.encode(FILLER), window, samples, seed)
    assert rows == passkey_rows(tokenizer, tokenizer.encode(FILLER), window, samples, seed)
    for row in rows:
        assert len(row.tokens) == row.length <= window
        text, key = tokenizer.decode(row.tokens), tokenizer.decode(row.key)
        assert len(key) == KEY_DIGITS and text.endswith(key)
        assert text.count(key) >= 2
        assert all(token not in rivals for token, rivals in zip(row.key, row.rivals, strict=True))


def test_the_key_stands_where_the_depth_says(tokenizer):
    rows = passkey_rows(tokenizer, tokenizer.encode(FILLER), 600, 1, 3)
    longest = [row for row in rows if row.length == 600]
    places = [tokenizer.decode(row.tokens).index(tokenizer.decode(row.key)) for row in longest]
    whole = len(tokenizer.decode(longest[0].tokens))
    assert [round(place / whole, 1) for place in places] == pytest.approx(
        [0.0, 0.2, 0.5, 0.7, 0.9], abs=0.1
    )
    assert len({tuple(row.key) for row in longest}) == 1


def test_rivals_are_the_other_digits(tokenizer):
    (row, *_) = passkey_rows(tokenizer, tokenizer.encode(FILLER), 400, 1, 0)
    digits = {tokenizer.encode(str(digit))[0] for digit in range(10)}
    for token, rivals in zip(row.key[1:], row.rivals[1:], strict=True):
        assert set(rivals) | {token} <= digits
        assert len(rivals) >= 7


def test_special_tokens_of_the_filler_are_left_out(tokenizer):
    filler = [tokenizer.eos_id, *tokenizer.encode(FILLER), tokenizer.pad_id]
    rows = passkey_rows(tokenizer, filler, 500, 2, 0)
    assert not {tokenizer.eos_id, tokenizer.pad_id} & {t for row in rows for t in row.tokens}


def test_lengths_without_room_for_the_shortest_question_are_left_out(tokenizer):
    rows = passkey_rows(tokenizer, tokenizer.encode(FILLER), 64, 1, 0)
    assert {row.length for row in rows} <= {32, 64}
    assert {row.length for row in rows} >= {64}
    assert passkey_rows(tokenizer, tokenizer.encode(FILLER), 12, 1, 0) == []
    assert passkey_rows(tokenizer, [], 500, 1, 0) == []
