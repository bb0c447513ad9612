"""Swiss rounds find the best candidate of a known order, and stay sane where there is none."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longstride.rewards.generative.swiss import swiss, swiss_rounds

ORDERS = st.integers(1, 40).flatmap(lambda n: st.permutations(range(n)))
OUTCOMES = st.sampled_from([-1, 0, 1])


def by_strength(strength):
    def play(pairs):
        return [(strength[a] > strength[b]) - (strength[a] < strength[b]) for a, b in pairs]

    return play


@given(ORDERS)
def test_the_best_of_a_known_order_wins_in_about_log2_n_rounds(strength):
    rounds = []

    def play(pairs):
        rounds.append(len(pairs))
        return by_strength(strength)(pairs)

    standings = swiss(len(strength), play)
    assert strength[standings[0].candidate] == len(strength) - 1
    assert len(rounds) <= math.ceil(math.log2(len(strength))) + 1
    assert sum(rounds) <= len(strength) / 2 * (math.ceil(math.log2(len(strength))) + 1)


@given(ORDERS)
def test_the_order_of_the_candidates_does_not_decide_who_wins(strength):
    first = swiss(len(strength), by_strength(strength))[0].candidate
    turned = strength[::-1]
    assert strength[first] == turned[swiss(len(turned), by_strength(turned))[0].candidate]


@given(st.integers(1, 17), st.integers(0, 8), st.data())
def test_any_judge_also_an_intransitive_one_gives_a_sound_table(count, rounds, data):
    played = []

    def play(pairs):
        seen = [candidate for pair in pairs for candidate in pair]
        assert len(seen) == len(set(seen)) == count - count % 2
        played.extend(pairs)
        return [data.draw(OUTCOMES) for _ in pairs]

    standings = swiss(count, play, rounds)
    assert sorted(s.candidate for s in standings) == list(range(count))
    assert len({frozenset(pair) for pair in played}) == len(played)  # nobody meets twice
    played_rounds = len(played) // (count // 2) if count > 1 else rounds
    assert sum(s.points for s in standings) == len(played) + (count % 2) * played_rounds
    points = {s.candidate: s.points for s in standings}
    for standing in standings:
        assert standing.buchholz == pytest.approx(sum(points[o] for o in standing.opponents))
    keys = [(-s.points, -s.buchholz, s.candidate) for s in standings]
    assert keys == sorted(keys)


def test_rock_paper_scissors_is_decided_the_same_way_every_time():
    def play(pairs):
        return [1 if (b - a) % 3 == 1 else -1 for a, b in pairs]

    tables = [swiss(3, play) for _ in range(3)]
    assert tables[0] == tables[1] == tables[2]


def test_equal_points_are_ordered_by_the_strength_of_the_opponents():
    # In the first round 0 beats 1 and 2 beats 3; in the second 0 beats 2 and 1 beats 3. So 1 and 2
    # have a point each and 1 lost to the winner: opponents of 1 have 2 + 0, those of 2 have 0 + 2.
    standings = swiss(4, by_strength([3, 1, 2, 0]))
    assert [s.candidate for s in standings] == [0, 1, 2, 3]
    assert [(s.points, s.buchholz) for s in standings] == [(2, 2), (1, 2), (1, 2), (0, 2)]


def test_a_single_candidate_plays_nobody():
    (only,) = swiss(1, lambda pairs: pytest.fail("nothing to play"))
    assert (only.candidate, only.points, swiss_rounds(1)) == (0, 0.0, 0)


def test_no_candidates_are_a_mistake():
    with pytest.raises(ValueError, match="candidates=0"):
        swiss(0, lambda pairs: [])
