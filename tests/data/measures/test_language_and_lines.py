"""Language, and the line and paragraph rules of Gopher and FineWeb, re-derived by brute force."""

import itertools
import random
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longstride.data.measures.language import LEAST_LETTERS, language_of
from longstride.data.measures.prose import DUPLICATE_NGRAMS, NAMES, prose_facts
from longstride.data.measures.words import WordHasher, split_words

SENTENCES = {
    "en": "The old ferryman counted seven grey geese and then four white swans on the water.",
    "de": "Der alte Fährmann zählte sieben graue Gänse und dann vier weiße Schwäne am Ufer.",
    "fr": "Le vieux passeur compta sept oies grises puis quatre cygnes blancs sur la rivière.",
    "es": "El viejo barquero contó siete gansos grises y luego cuatro cisnes blancos en el río.",
    "ru": "Старый паромщик насчитал семь серых гусей, потом четырёх белых лебедей.",
    "ja": "年老いた渡し守は灰色のガチョウを七羽、それから白い白鳥を四羽数えました。",
}


def facts(text):
    return prose_facts(text, split_words(text), WordHasher().hashes(text))


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_is_of_its_language(code):
    found, probability = language_of(SENTENCES[code])
    assert found == code
    assert 0.65 < probability <= 1.0


@pytest.mark.parametrize("text", ["", "hello", "12345 + 77 = 8 " * 50, "x" * (LEAST_LETTERS - 1)])
def test_a_text_with_few_letters_is_undetermined(text):
    assert language_of(text) == ("und", 0.0)


def test_the_language_of_a_long_text_is_read_from_all_its_parts():
    english, german = SENTENCES["en"] + "\n", SENTENCES["de"] + "\n"
    assert language_of(english * 40 + german * 2_000)[0] == "de"
    assert language_of(german * 20 + english * 2_000 + german)[0] == "en"


def test_the_language_is_the_same_in_another_process():
    code = (
        "from longstride.data.measures.language import language_of\n"
        f"print(language_of({SENTENCES['fr']!r}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert out.stdout.strip() == str(language_of(SENTENCES["fr"]))


def find_duplicates(items):
    """As datatrove's gopher_repetition_filter counts them."""
    seen, elements, characters = set(), 0, 0
    for item in items:
        if item in seen:
            elements += 1
            characters += len(item)
        seen.add(item)
    return elements, characters


TEXTS = st.lists(
    st.sampled_from(["one line.", "another, longer line of more than thirty characters", "x", "",
                     "\n", " ", "  indented"]),
    min_size=1, max_size=30,
).map("\n".join)  # fmt: skip


@given(TEXTS)
def test_lines_and_paragraphs_follow_datatroves_definitions(text):
    found = facts(text)
    paragraphs = re.split(r"\n{2,}", text.strip())
    elements, characters = find_duplicates(paragraphs)
    assert found["duplicate_paragraph_share"] == pytest.approx(elements / len(paragraphs))
    assert found["duplicate_paragraph_character_share"] == pytest.approx(
        characters / max(1, len(text))
    )
    lines = [line for line in text.split("\n") if line.strip() != ""]
    if lines:
        short = sum(1 for line in lines if len(line) <= 30) / len(lines)
        assert found["short_line_share"] == pytest.approx(short)
        assert found["duplicate_character_share"] == pytest.approx(
            find_duplicates(lines)[1] / len(text.replace("\n", ""))
        )
        assert found["newline_word_ratio"] == pytest.approx(
            text.count("\n") / len(split_words(text))
        )


def test_all_measures_have_their_names_and_a_longer_ngram_never_repeats_where_a_shorter_does_not():
    rng = random.Random(3)
    for words in (4, 40, 4_000):
        found = facts(" ".join(rng.choices([f"w{i}" for i in range(words)], k=300)))
        assert set(found) == set(NAMES)
        shares = [found[f"duplicate_{n}gram_share"] for n in DUPLICATE_NGRAMS]
        assert all(later == 0 for now, later in itertools.pairwise(shares) if now == 0)
    assert set(facts("")) == set(NAMES)
