import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trained_tokenizers import CORPUS, trained

from longstride.errors import DataError
from longstride.tokens.tokenizer import SPECIALS, Tokenizer
from schemas.model import TokenizerConfig

CONFIG = TokenizerConfig(vocab_size=400)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
TAGGED_TEXT = st.lists(st.sampled_from(SPECIALS) | ANY_TEXT, max_size=6).map("".join)


@settings(deadline=None)
@given(ANY_TEXT | TAGGED_TEXT)
def test_any_unicode_text_survives_the_round_trip(text: str) -> None:
    assert trained().decode(trained().encode(text), keep_end=True) == text


@settings(deadline=None)
@given(TAGGED_TEXT)
def test_text_never_encodes_to_a_special_token(text: str) -> None:
    assert min(trained().encode(text), default=len(SPECIALS)) >= len(SPECIALS)


def test_special_tokens_are_single_ids_that_decode_to_their_names() -> None:
    tokenizer = trained()
    ids = [tokenizer.special(name) for name in SPECIALS]
    assert ids == list(range(8))
    assert tokenizer.decode(ids, keep_end=True) == "".join(SPECIALS)
    assert (tokenizer.pad_id, tokenizer.eos_id) == (0, 1)


@settings(deadline=None)
@given(st.integers(0, 10**12), st.sampled_from(["", " ", "x", "-", "3.", "\n"]))
def test_every_digit_is_a_token_of_its_own(number: int, before: str) -> None:
    tokenizer = trained()
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode(before + str(number))]
    assert [piece for piece in pieces if any(c.isdigit() for c in piece)] == [
        c for c in before + str(number) if c.isdigit()
    ]


def test_digits_may_merge_when_asked_to(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"split_digits": False})
    tokenizer = Tokenizer.train(CORPUS, config, tmp_path)
    assert len(tokenizer.encode("12345")) < 5


def test_ids_of_one_text_are_in_the_vocabulary_and_the_vocabulary_is_bounded() -> None:
    tokenizer = trained()
    assert 256 + len(SPECIALS) < tokenizer.vocab_size <= 400
    assert max(tokenizer.encode("".join(CORPUS))) < tokenizer.vocab_size


def test_merges_shorten_the_text_they_were_learnt_from() -> None:
    assert len(trained().encode(CORPUS[0])) < 0.5 * len(CORPUS[0])


def test_equal_texts_give_an_equal_tokenizer(tmp_path: Path) -> None:
    again = Tokenizer.train(iter(CORPUS), CONFIG, tmp_path)
    assert again.digest == trained().digest
    assert Tokenizer.load(tmp_path).encode("return 12") == trained().encode("return 12")


def test_only_the_first_training_characters_count(tmp_path: Path) -> None:
    config = TokenizerConfig(vocab_size=400, training_characters=10_000)
    texts = ["abc def " * 1250, "zyx wvu " * 1250]
    one = Tokenizer.train(texts, config, tmp_path / "one")
    two = Tokenizer.train(texts[:1], config, tmp_path / "two")
    assert one.digest == two.digest


def test_closing_tokens_are_not_part_of_the_text() -> None:
    tokenizer = trained()
    body = tokenizer.encode("ok")
    closing = [tokenizer.end_id, tokenizer.eos_id, tokenizer.pad_id]
    assert tokenizer.decode(body + closing) == "ok"
    assert tokenizer.decode([tokenizer.end_id, *body]) == "<|end|>ok"


def test_broken_bytes_decode_to_replacement_characters() -> None:
    tokenizer = trained()
    assert "\ufffd" in tokenizer.decode(tokenizer.encode("🙂")[:-1])


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no text to train a tokenizer on"):
        Tokenizer.train(["", ""], CONFIG, tmp_path)


def test_lone_surrogates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not valid Unicode"):
        trained().encode("a\ud800")
    with pytest.raises(DataError, match="training text 1 is not valid Unicode"):
        Tokenizer.train(["fine", "a\ud800"], CONFIG, tmp_path)


def test_foreign_ids_and_names_are_refused() -> None:
    with pytest.raises(DataError, match="token 400 is outside the vocabulary"):
        trained().decode([400])
    with pytest.raises(ValueError, match="'<tool>' is not a special token"):
        trained().special("<tool>")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe", b"[]"])
def test_missing_or_corrupt_files_are_named(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    Tokenizer.train(CORPUS, CONFIG, tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        Tokenizer.load(tmp_path)


def test_a_changed_tokenizer_is_refused(tmp_path: Path) -> None:
    Tokenizer.train(CORPUS, CONFIG, tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(DataError, match="has digest"):
        Tokenizer.load(tmp_path)


def test_a_foreign_tokenizer_is_refused(tmp_path: Path) -> None:
    Tokenizer.train(CORPUS, CONFIG, tmp_path)
    path = tmp_path / "tokenizer.json"
    described = json.loads(path.read_text())
    described["added_tokens"] = []
    path.write_text(json.dumps(described).replace("<|user|>", "[USER]"))
    with pytest.raises(DataError, match=r"special token <\|user\|> is missing"):
        Tokenizer.load(tmp_path)


def test_a_sampled_id_beyond_the_vocabulary_is_a_bad_character_and_not_an_error() -> None:
    tokenizer = trained()
    ids = [*tokenizer.encode("a"), tokenizer.vocab_size + 7, *tokenizer.encode("b")]
    assert tokenizer.decode_sample(ids) == "a\ufffdb"
    assert tokenizer.decode_sample(tokenizer.encode("12")) == "12"
