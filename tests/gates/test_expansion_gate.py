"""The expansion gate: when a window opens, and what happens when it may not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.errors import DataError
from longstride.gates.ladder import decide, first_state
from schemas.ladder import LadderConfig, LadderState, RoundFacts

CONFIG = LadderConfig()


def facts(**changes):
    values = {
        "window": 40,
        "perplexity_first": 2.0,
        "perplexity_last": 2.0,
        "perplexity_head": 2.0,
        "perplexity_tail": 2.0,
        "length_p50": 20.0,
        "length_p99": 39.0,
        "length_p99_correct": 38.0,
        "length_p99_wrong": 39.0,
        "truncated_share": 0.1,
        "repetition_share": 0.0,
        "reward_mean": 0.5,
        "samples": 64,
    }
    return RoundFacts(**(values | changes))


def start():
    return first_state(CONFIG, 5.0, 1.0)


COLLAPSE = {"perplexity_tail": 3.2, "length_p99_correct": 20.0, "length_p99_wrong": 40.0}


def decision(state, **changes):
    return decide(state, facts(window=state.window, **changes), CONFIG, 1)


def test_the_first_state_is_the_first_window_with_the_recipes_cap_and_clip():
    state = start()
    assert (state.window, state.is_weight_cap, state.grad_clip) == (40, 5.0, 1.0)
    assert state.status == "active" and state.history == []


def test_the_window_opens_when_perplexity_converged_and_lengths_near_it():
    state = decision(start())
    assert state.window == 48
    assert state.history[-1].decision == "expand"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"perplexity_last": 2.5}, "has not converged: 2 -> 2.5 changes by 0.25 (> 0.15)"),
        ({"perplexity_last": 1.5}, "perplexity has not converged"),
        ({"length_p99": 35.9}, "p99 length 35.9 is below the window of 40 (< 36"),
    ],
)
def test_either_condition_alone_holds_the_window_and_says_why(changes, told):
    state = decision(start(), **changes)
    assert state.window == 40
    assert state.history[-1].decision == "hold"
    assert any(told in reason for reason in state.history[-1].reasons)


def test_thresholds_are_inclusive():
    assert decision(start(), perplexity_last=2.3, length_p99=36.0).window == 48


def test_truncation_is_told_while_perplexity_moves():
    state = decision(start(), perplexity_last=3.0, truncated_share=0.7)
    assert any("truncated share 0.7 is over" in reason for reason in state.history[-1].reasons)


def test_collapse_tightens_the_cap_towards_one_and_the_clip():
    state = decision(start(), **COLLAPSE)
    assert state.history[-1].decision == "remedy"
    assert state.window == 40
    assert (state.is_weight_cap, state.grad_clip, state.remedies) == (3.0, 0.5, 1)


def test_repetition_calls_for_a_remedy_too():
    assert decision(start(), repetition_share=0.2).history[-1].decision == "remedy"


@pytest.mark.parametrize(
    "changes",
    [
        {"perplexity_tail": 3.2},
        {"length_p99_correct": 20.0, "length_p99_wrong": 40.0},
    ],
)
def test_symptom_or_cause_alone_is_no_collapse(changes):
    assert decision(start(), **changes).history[-1].decision == "expand"


def test_without_wrong_answers_a_garbled_tail_decides_alone():
    state = decision(start(), perplexity_tail=3.2, length_p99_wrong=None)
    assert state.history[-1].decision == "remedy"


def test_a_remedy_that_does_not_help_halts_the_ladder():
    state = start()
    for _ in range(CONFIG.maximum_remedies):
        state = decision(state, **COLLAPSE)
        assert state.status == "active"
    state = decision(state, **COLLAPSE)
    assert (state.status, state.history[-1].decision) == ("halted", "halt")
    assert "2 remedies in a row did not help" in state.history[-1].reasons[-1]


def test_a_sound_round_ends_the_row_of_remedies():
    state = decision(decision(start(), **COLLAPSE), perplexity_last=3.0)
    assert state.remedies == 0
    assert state.grad_clip == 0.5


def test_the_last_window_completes_the_ladder():
    state = LadderState(window=80, is_weight_cap=5.0, grad_clip=1.0)
    state = decision(state, length_p99=79.0)
    assert (state.status, state.window, state.history[-1].decision) == ("complete", 80, "complete")


def test_the_last_window_holds_until_it_is_filled():
    state = LadderState(window=80, is_weight_cap=5.0, grad_clip=1.0)
    assert decision(state, length_p99=50.0).status == "active"


@pytest.mark.parametrize("status", ["complete", "halted"])
def test_an_ended_ladder_passes_rounds_through(status):
    state = LadderState(status=status, window=48, is_weight_cap=2.0, grad_clip=0.5, remedies=1)
    after = decide(state, facts(), CONFIG, 4)
    assert after.model_dump(exclude={"history"}) == state.model_dump(exclude={"history"})
    assert after.history[-1].decision == "passed_through"


def test_a_round_without_facts_is_passed_through():
    after = decide(start(), None, CONFIG, 3)
    assert after.window == 40
    assert (after.history[-1].round, after.history[-1].decision) == (3, "passed_through")


def test_an_algorithm_without_a_cap_keeps_none():
    state = decision(first_state(CONFIG, None, 1.0), **COLLAPSE)
    assert state.is_weight_cap is None
    assert state.grad_clip == 0.5


def test_facts_of_another_window_are_refused():
    with pytest.raises(DataError, match="measured at window 48, but the ladder is at 40"):
        decide(start(), facts(window=48), CONFIG, 1)


def test_a_state_off_the_ladder_is_refused():
    state = LadderState(window=41, grad_clip=1.0)
    with pytest.raises(DataError, match="at window 41, which is no rung"):
        decide(state, facts(window=41), CONFIG, 1)


RATIO = st.floats(0.1, 10.0)
CONFIGS = st.builds(
    LadderConfig,
    rungs=st.lists(st.integers(1, 200), min_size=1, max_size=6, unique=True).map(sorted),
    scale=st.sampled_from([1, 7, 1000]),
    p99_share=st.floats(0.05, 1.0),
    perplexity_relative_change=st.floats(0.01, 1.0),
    maximum_repetition_share=st.floats(0.0, 1.0),
    collapse_perplexity_ratio=st.floats(1.01, 4.0),
    collapse_length_ratio=st.floats(1.01, 4.0),
    remedy_cap_factor=st.floats(0.01, 1.0),
    remedy_grad_clip_factor=st.floats(0.01, 1.0),
    maximum_remedies=st.integers(0, 4),
)


@st.composite
def runs(draw):
    """A configuration and what each of several rounds measured, but for the window."""
    config = draw(CONFIGS)
    rounds = draw(
        st.lists(
            st.one_of(
                st.none(),
                st.fixed_dictionaries(
                    {
                        "perplexity_first": RATIO,
                        "perplexity_last": RATIO,
                        "perplexity_head": RATIO,
                        "perplexity_tail": RATIO,
                        "length_p99": st.floats(0.0, 200_000.0),
                        "length_p99_correct": st.one_of(st.none(), st.floats(1.0, 1000.0)),
                        "length_p99_wrong": st.one_of(st.none(), st.floats(1.0, 1000.0)),
                        "repetition_share": st.floats(0.0, 1.0),
                    }
                ),
            ),
            max_size=12,
        )
    )
    cap = draw(st.one_of(st.none(), st.floats(1.0, 50.0)))
    return config, cap, rounds


def property_test(test):
    """Try a test on generated runs; slow machines are no failures."""
    return settings(max_examples=60, deadline=None)(given(runs())(test))


def steps(run):
    """Every (state before, facts, state after) of a run."""
    config, cap, rounds = run
    state = first_state(config, cap, 1.0)
    for number, measured in enumerate(rounds, start=1):
        seen = None if measured is None else facts(window=state.window, **measured)
        after = decide(state, seen, config, number)
        yield state, seen, after
        state = after


@property_test
def test_the_window_never_shrinks_and_never_skips_a_rung(run):
    windows = run[0].windows
    for before, _, after in steps(run):
        moved = windows.index(after.window) - windows.index(before.window)
        assert moved in (0, 1)


@property_test
def test_the_window_grows_only_when_both_conditions_hold_and_nothing_has_collapsed(run):
    config = run[0]
    for before, seen, after in steps(run):
        if after.window > before.window:
            change = abs(seen.perplexity_last - seen.perplexity_first) / seen.perplexity_first
            assert change <= config.perplexity_relative_change
            assert seen.length_p99 >= config.p99_share * before.window
            assert seen.repetition_share <= config.maximum_repetition_share


@property_test
def test_cap_and_clip_only_tighten_and_the_cap_stays_at_least_one(run):
    for before, _, after in steps(run):
        assert after.grad_clip <= before.grad_clip
        assert (after.is_weight_cap is None) == (before.is_weight_cap is None)
        if after.is_weight_cap is not None:
            assert 1.0 <= after.is_weight_cap <= before.is_weight_cap


@property_test
def test_history_grows_by_one_and_the_input_is_left_alone(run):
    config = run[0]
    for before, seen, after in steps(run):
        copy = before.model_copy(deep=True)
        again = decide(before, seen, config, after.history[-1].round)
        assert again == after
        assert before == copy
        assert after.history[:-1] == before.history


@property_test
def test_an_ended_ladder_stays_ended(run):
    for before, _, after in steps(run):
        if before.status != "active":
            assert after.status == before.status
            assert after.history[-1].decision == "passed_through"


@property_test
def test_remedies_in_a_row_never_exceed_the_limit(run):
    for _, _, after in steps(run):
        assert after.remedies <= run[0].maximum_remedies
