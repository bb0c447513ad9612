from hypothesis import given
from hypothesis import strategies as st

from longstride.training.ranks import Ranks


@given(parts=st.integers(1, 40), count=st.integers(1, 9))
def test_every_part_is_worked_on_once_and_every_rank_runs_equally_often(parts, count):
    shares = [Ranks(rank, count).share(range(parts)) for rank in range(count)]
    assert sorted(part for share in shares for part, weight in share if weight) == list(
        range(parts)
    )
    assert {len(share) for share in shares} == {-(-parts // count)}
    assert {weight for share in shares for _, weight in share} <= {0.0, 1.0}


def test_one_rank_works_on_the_parts_in_their_order():
    assert Ranks().share("abc") == [("a", 1.0), ("b", 1.0), ("c", 1.0)]


def test_nothing_is_shared_as_nothing():
    assert Ranks(1, 2).share([]) == []


def test_one_rank_agrees_with_itself():
    ranks = Ranks()
    assert ranks.first
    assert ranks.total([1.5, 2]) == [1.5, 2]
    assert ranks.gather({"a": [1]}) == [{"a": [1]}]
    assert ranks.from_first("x") == "x"
