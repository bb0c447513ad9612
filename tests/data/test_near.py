"""Near-duplicates on disk against those in memory, and against datasketch."""

import random

import datasketch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.data.measures.minhash import jaccard, near_duplicates, shingle_set
from longstride.data.measures.words import WordHasher
from longstride.data.near import NearDuplicates
from longstride.data.spool import DigestSet

VOCABULARY = [f"word{number}" for number in range(500)]


def texts_of(seed, count):
    """Families of texts that differ by a few words, many of them near the threshold."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        if found and rng.random() < 0.6:
            words = rng.choice(found).split()
            for _ in range(rng.randint(0, 6)):
                words[rng.randrange(len(words))] = rng.choice(VOCABULARY)
            found.append(" ".join(words))
        else:
            found.append(" ".join(rng.choices(VOCABULARY, k=rng.choice([3, 60, 150]))))
    return found


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 60), parts=st.integers(1, 4))
def test_the_same_are_found_as_in_memory_in_one_go_or_in_several(
    tmp_path_factory, seed, count, parts
):
    hasher = WordHasher()
    words = [hasher.hashes(text) for text in texts_of(seed, count)]
    path = tmp_path_factory.mktemp("near") / "bands"
    near = NearDuplicates(path, lambda index: shingle_set(words[index]))
    step = -(-count // parts)
    for start in range(0, count, step):
        for index in range(start, min(count, start + step)):
            near.add(index, shingle_set(words[index]))
        found = near.find()
    near.close()
    assert found == near_duplicates(words)


def test_what_datasketch_finds_with_the_same_bands_is_found():
    rng = random.Random(7)
    originals = [" ".join(rng.choices(VOCABULARY, k=200)) for _ in range(40)]
    close = []
    for text in originals:
        words = text.split()
        words[rng.randrange(200)] = "elsewhere"
        close.append(" ".join(words))
    texts = originals + close + [" ".join(rng.choices(VOCABULARY, k=200)) for _ in range(40)]
    hasher = WordHasher()
    shingles = [shingle_set(hasher.hashes(text)) for text in texts]
    lsh = datasketch.MinHashLSH(num_perm=112, params=(14, 8))
    expected = set()
    for index, values in enumerate(shingles):
        sketch = datasketch.MinHash(num_perm=112)
        sketch.update_batch([int(value).to_bytes(8, "little") for value in values])
        if any(jaccard(values, shingles[int(key)]) >= 0.72 for key in lsh.query(sketch)):
            expected.add(index)
        lsh.insert(str(index), sketch)
    assert near_duplicates([hasher.hashes(text) for text in texts]) == expected
    assert expected == set(range(40, 80))


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_a_digest_is_new_once(keys):
    seen = DigestSet()
    expected = set()
    for key in [*keys, *keys]:
        same_slot_as_one = key or 1
        assert seen.add(key) == (same_slot_as_one not in expected)
        expected.add(same_slot_as_one)
    assert len(seen) == len(expected)


def test_a_set_of_digests_grows_and_forgets_none():
    rng = random.Random(1)
    keys = [rng.getrandbits(64) for _ in range(20_000)]
    seen = DigestSet()
    assert all(seen.add(key) for key in keys)
    assert not any(seen.add(key) for key in keys)


@pytest.mark.parametrize("stride", [1, 2**32, 2**54])
def test_regular_keys_do_not_slow_the_set_down(stride):
    seen = DigestSet()
    assert all(seen.add(1 + number * stride % 2**64) for number in range(1, 1000))
