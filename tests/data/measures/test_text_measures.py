"""Measures of text against brute force and closed forms."""

import hashlib
import itertools
import math
import random
from collections import Counter

import pytest

from longstride.data.measures.minhash import BANDS, ROWS, near_duplicates, shingle_set, signatures
from longstride.data.measures.overlap import Problem, ProblemIndex
from longstride.data.measures.prose import prose_facts
from longstride.data.measures.secrets import email_count, public_ip_count, secret_count
from longstride.data.measures.words import WordHasher, ngrams, split_words, without_punctuation
from longstride.quality.measure_chat import _REFLECTION

VOCABULARY = [f"word{number}" for number in range(2_000)]


def facts(text):
    return prose_facts(text, split_words(text), WordHasher().hashes(text))


def tuples(text, n):
    words = split_words(text)
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


@pytest.mark.parametrize("n", [1, 2, 5, 9, 40])
def test_ngram_hashes_are_equal_exactly_where_ngrams_are(n):
    rng = random.Random(n)
    text = " ".join(rng.choices(VOCABULARY[:4], k=60))
    hashes = ngrams(WordHasher().hashes(text), n).tolist()
    expected = tuples(text, n)
    assert len(hashes) == len(expected)
    for (a, b), (x, y) in zip(
        itertools.combinations(hashes, 2), itertools.combinations(expected, 2), strict=True
    ):
        assert (a == b) == (x == y)


def test_ngram_hashes_do_not_depend_on_what_stands_before():
    hasher = WordHasher()
    alone = ngrams(hasher.hashes("to be or not"), 4)
    inside = ngrams(hasher.hashes("whether tis nobler to be or not to suffer"), 4)
    assert alone[0] in inside


def test_hashes_are_those_of_blake2b_whatever_the_process_case_and_spacing():
    digest = hashlib.blake2b(b"same", digest_size=8).digest()
    found = WordHasher().hashes("Same  SAME\nsame")
    assert set(found.tolist()) == {int.from_bytes(digest, "little") & ~1}


def test_punctuation_can_be_left_out():
    hasher = WordHasher()
    signed = hasher.hashes("3 - 4 = -1")
    assert without_punctuation(signed).tolist() == hasher.hashes("3 4 1").tolist()
    assert hasher.hashes("3 - 4").tolist() != hasher.hashes("3 + 4").tolist()


def brute_jaccard(a, b):
    left, right = set(tuples(a, 5)), set(tuples(b, 5))
    return len(left & right) / len(left | right)


def mutated(text, changes, rng):
    words = text.split()
    for place in rng.sample(range(len(words)), changes):
        words[place] = rng.choice(VOCABULARY)
    return " ".join(words)


def test_near_duplicates_are_those_of_brute_force():
    rng = random.Random(2)
    originals = [" ".join(rng.choices(VOCABULARY, k=300)) for _ in range(30)]
    close = [mutated(text, 1, rng) for text in originals[:10]]
    far = [mutated(text, 90, rng) for text in originals[10:20]]
    texts = originals + close + far
    hasher = WordHasher()
    found = near_duplicates([hasher.hashes(text) for text in texts])
    expected = {
        i for i, text in enumerate(texts)
        if any(brute_jaccard(text, earlier) >= 0.72 for earlier in texts[:i])
    }  # fmt: skip
    assert found == expected == set(range(30, 40))


def test_signatures_estimate_the_jaccard_similarity():
    rng = random.Random(4)
    text = " ".join(rng.choices(VOCABULARY, k=600))
    other = mutated(text, 20, rng)
    hasher = WordHasher()
    a, b = signatures([shingle_set(hasher.hashes(t)) for t in (text, other)])
    estimate = float((a == b).mean())
    spread = math.sqrt(0.25 / (BANDS * ROWS))
    assert abs(estimate - brute_jaccard(text, other)) < 4 * spread


def test_empty_and_short_texts_are_no_trouble():
    hasher = WordHasher()
    texts = [hasher.hashes(text) for text in ("", "", "one two", "one two", "one three")]
    assert near_duplicates(texts) == {3}


PROBLEMS = [
    Problem("a", "sum", "Work out the sum and say it: 3 + 4 ="),
    Problem("b", "sum", "Work out the sum and say it: 9 - 2 ="),
    Problem("c", "story", "The old ferryman counted seven grey geese and then four white swans."),
]


@pytest.fixture
def index():
    hasher = WordHasher()
    held_out = ProblemIndex(PROBLEMS, 8, hasher)
    return lambda text, how: getattr(held_out, how)(hasher.hashes(text))


def test_a_problem_is_found_whole_whatever_surrounds_it(index):
    assert index("Q1. work out the SUM and say it: 3+4 = 7", "holds")
    assert not index("Work out the sum and say it: 3 - 4 =", "holds")


def test_the_template_of_a_family_is_no_evidence(index):
    assert not index("Work out the sum and say it: 8 + 8 =", "overlaps")


def test_eight_words_of_a_problem_are_evidence(index):
    assert index("they say the old ferryman counted seven grey geese and left", "overlaps")
    assert not index("the old ferryman counted seven grey hens and left early", "overlaps")


def test_equal_means_no_more_and_no_less(index):
    assert index(PROBLEMS[0].text.upper(), "equals")
    assert not index(PROBLEMS[0].text + " 7", "equals")


def test_an_empty_index_finds_nothing():
    hasher = WordHasher()
    held_out = ProblemIndex([], 8, hasher)
    words = hasher.hashes("anything at all")
    assert not (held_out.holds(words) or held_out.overlaps(words) or held_out.equals(words))


def test_shares_of_lines_and_words_are_counted():
    text = "- one.\n- two.\nthe end of it...\nthe end of it...\n42 17"
    found = facts(text)
    assert found["bullet_line_share"] == pytest.approx(2 / 5)
    assert found["ellipsis_line_share"] == pytest.approx(2 / 5)
    assert found["duplicate_line_share"] == pytest.approx(1 / 5)
    assert found["duplicate_line_character_share"] == pytest.approx(16 / len(text))
    assert found["punctuated_line_share"] == pytest.approx(4 / 5)
    assert found["stop_words"] == 2
    assert found["words"] == 14
    assert found["alphabetic_word_share"] == pytest.approx(10 / 14)


def test_mean_word_length_counts_words_and_not_marks():
    assert facts("one -- three , four")["mean_word_length"] == pytest.approx(4.0)


def test_top_ngrams_cover_what_brute_force_says():
    rng = random.Random(1)
    text = " ".join(rng.choices(["aa", "b", "cccc"], k=80))
    for n in (2, 3, 4):
        counts = Counter(tuples(text, n))
        most = max(counts.values())
        longest = max(len(" ".join(gram)) for gram, count in counts.items() if count == most)
        assert facts(text)[f"top_{n}gram_share"] == pytest.approx(longest * most / len(text))


@pytest.mark.parametrize("n", [5, 6, 7, 8, 9, 10])
def test_duplicate_ngrams_follow_datatroves_definition(n):
    rng = random.Random(n)
    words = rng.choices(["aa", "b"], k=120)
    text = " ".join(words)
    seen, characters, at = set(), 0, 0
    while at + n <= len(words):
        gram = " ".join(words[at : at + n])
        characters += len(gram) if gram in seen else 0
        at += n if gram in seen else 1
        seen.add(gram)
    assert facts(text)[f"duplicate_{n}gram_share"] == pytest.approx(characters / len(text))


@pytest.mark.parametrize(
    "text",
    [
        "key = AKIA" + "QWERTYUIOPASDFGH",
        "ghp_" + "a1B2" * 9,
        "AIza" + "x" * 35,
        "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA" * 4 + "\n",
    ],
)
def test_secrets_are_found(text):
    assert secret_count(text) == 1


@pytest.mark.parametrize(
    "text",
    [
        "the documented AKIAIOSFODNN7EXAMPLE key",
        'if line == "-----BEGIN RSA PRIVATE KEY-----":\n    return load(line)',
        "sha256:" + "ab" * 32,
        "task-" + "a" * 50,
    ],
)
def test_things_that_look_like_secrets_are_left_alone(text):
    assert secret_count(text) == 0


def test_addresses_are_counted_but_not_examples_or_versions():
    assert email_count("ada@lovelace.org, x@example.com, y@localhost") == 1
    assert public_ip_count("93.184.216.34 10.0.0.1 192.168.1.1 1.2.3.4 999.1.1.1") == 1


@pytest.mark.parametrize(
    ("text", "reflects"),
    [("3+4=8 Wait, 3+4=7", True), ("Recheck: 7", True), ("await the waiter", False)],
)
def test_reflection_is_recognised_by_whole_words(text, reflects):
    assert (_REFLECTION.search(text) is not None) is reflects
