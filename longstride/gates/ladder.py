"""Staged length expansion (edge E6): what one round measured -> the window of the next round.

The M1 report opens the next window when the perplexity of generated sequences has converged and
the 99th percentile of output length nears the window, and answers late-stage pattern collapse with
a tighter gradient clip and a lower cap of the importance weight. Its thresholds are undisclosed;
ours are `LadderConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass

from longstride.errors import DataError
from schemas.ladder import (
    LadderConfig,
    LadderDecision,
    LadderEntry,
    LadderState,
    LadderStatus,
    RoundFacts,
)


@dataclass(frozen=True)
class Rule:
    """One rule with its outcome and the sentence that says why."""

    holds: bool
    reason: str


def first_state(config: LadderConfig, is_weight_cap: float | None, grad_clip: float) -> LadderState:
    """State before round 1: the first window, the recipe's cap and gradient clip."""
    return LadderState(window=config.windows[0], is_weight_cap=is_weight_cap, grad_clip=grad_clip)


def perplexity_converged(facts: RoundFacts, config: LadderConfig) -> Rule:
    """Whether |last - first| / first is within the configured relative change."""
    change = abs(facts.perplexity_last - facts.perplexity_first) / facts.perplexity_first
    holds = change <= config.perplexity_relative_change
    return Rule(
        holds,
        f"perplexity {'has' if holds else 'has not'} converged: {facts.perplexity_first:.4g} -> "
        f"{facts.perplexity_last:.4g} changes by {change:.3g} "
        f"({'<=' if holds else '>'} {config.perplexity_relative_change:g})",
    )


def length_near_window(facts: RoundFacts, config: LadderConfig) -> Rule:
    """Whether p99 of the output length reaches its share of the window."""
    needed = config.p99_share * facts.window
    holds = facts.length_p99 >= needed
    return Rule(
        holds,
        f"p99 length {facts.length_p99:g} {'nears' if holds else 'is below'} the window of "
        f"{facts.window} ({'>=' if holds else '<'} {needed:g} = {config.p99_share:g} x window)",
    )


def repetition_within_limit(facts: RoundFacts, config: LadderConfig) -> Rule:
    """Whether few enough samples were stopped for repetition."""
    holds = facts.repetition_share <= config.maximum_repetition_share
    return Rule(
        holds,
        f"repetition share {facts.repetition_share:.3g} is {'within' if holds else 'over'} the "
        f"limit ({'<=' if holds else '>'} {config.maximum_repetition_share:g})",
    )


def no_pattern_collapse(facts: RoundFacts, config: LadderConfig) -> Rule:
    """Whether the tails are sound.

    Collapse is the symptom together with its cause: the tail's perplexity rises over the head's,
    while wrong answers outgrow right ones. Either alone is ordinary (hard problems need longer
    answers), so both must cross their threshold. Without right or without wrong answers the cause
    cannot be seen, and the symptom alone decides.
    """
    tail = facts.perplexity_tail / facts.perplexity_head
    garbled = tail >= config.collapse_perplexity_ratio
    told = (
        f"tail perplexity is {tail:.3g} x the head's "
        f"({'>=' if garbled else '<'} {config.collapse_perplexity_ratio:g})"
    )
    right, wrong = facts.length_p99_correct, facts.length_p99_wrong
    if right is None or wrong is None:
        missing = "right" if right is None else "wrong"
        holds = not garbled
        told += f"; there are no {missing} answers to compare lengths with"
    else:
        outgrown = wrong >= config.collapse_length_ratio * right
        holds = not (garbled and outgrown)
        told += (
            f" and p99 length of wrong answers is {wrong:g} against {right:g} of right ones "
            f"({'>=' if outgrown else '<'} {config.collapse_length_ratio:g} x)"
        )
    return Rule(holds, f"{'no pattern collapse' if holds else 'pattern collapse'}: {told}")


def truncation_settled(facts: RoundFacts, config: LadderConfig) -> Rule:
    """Whether enough samples ended by themselves for their statistics to mean something."""
    holds = facts.truncated_share <= config.maximum_truncated_share
    return Rule(
        holds,
        f"truncated share {facts.truncated_share:.3g} is {'within' if holds else 'over'} the limit "
        f"({'<=' if holds else '>'} {config.maximum_truncated_share:g})",
    )


def decide(
    state: LadderState, facts: RoundFacts | None, config: LadderConfig, round_number: int
) -> LadderState:
    """Return the state after a round; the input is not changed and the history grows by one.

    Raises:
        DataError: The state's window is no rung, or the facts were measured at another window.
    """
    if facts is None or state.status != "active":
        why = (
            f"the ladder is {state.status}"
            if state.status != "active"
            else "the round measured nothing"
        )
        return _after(state, "passed_through", [f"round passed through: {why}"], round_number)
    _same_window(state, facts, config)
    converged = perplexity_converged(facts, config)
    near = length_near_window(facts, config)
    repetition = repetition_within_limit(facts, config)
    collapse = no_pattern_collapse(facts, config)
    settled = truncation_settled(facts, config)
    rules = [converged, near, collapse, repetition, settled]
    reasons = [rule.reason for rule in rules]
    if not (repetition.holds and collapse.holds):
        return _remedy(state, facts, config, reasons, round_number)
    if not (converged.holds and near.holds and settled.holds):
        return _after(state, "hold", reasons, round_number, facts=facts)
    wider = [window for window in config.windows if window > state.window]
    if not wider:
        reasons.append(f"the last window ({state.window}) is open; there is nothing to expand to")
        return _after(state, "complete", reasons, round_number, facts=facts, status="complete")
    reasons.append(f"the window grows {state.window} -> {wider[0]}")
    return _after(state, "expand", reasons, round_number, facts=facts, window=wider[0])


def _same_window(state: LadderState, facts: RoundFacts, config: LadderConfig) -> None:
    if state.window not in config.windows:
        raise DataError(
            f"the ladder state is at window {state.window}, which is no rung of {config.windows}; "
            "the recipe's ladder was changed in the middle of a run"
        )
    if facts.window != state.window:
        raise DataError(
            f"the round was measured at window {facts.window}, but the ladder is at "
            f"{state.window}; pass the facts of the round that ran at this state"
        )


def _remedy(
    state: LadderState,
    facts: RoundFacts,
    config: LadderConfig,
    reasons: list[str],
    round_number: int,
) -> LadderState:
    count = state.remedies + 1
    if count > config.maximum_remedies:
        reasons.append(
            f"{state.remedies} remedies in a row did not help (at most "
            f"{config.maximum_remedies}); the ladder halts"
        )
        return _after(state, "halt", reasons, round_number, facts=facts, status="halted")
    cap = state.is_weight_cap
    if cap is not None:
        cap = 1.0 + (cap - 1.0) * config.remedy_cap_factor
    clip = state.grad_clip * config.remedy_grad_clip_factor
    reasons.append(
        f"remedy {count} of {config.maximum_remedies}: is_weight_cap {state.is_weight_cap} -> "
        f"{cap}, grad_clip {state.grad_clip:g} -> {clip:g}"
    )
    tightened = state.model_copy(
        update={"is_weight_cap": cap, "grad_clip": clip, "remedies": count}
    )
    return _after(tightened, "remedy", reasons, round_number, facts=facts, remedies=count)


def _after(
    state: LadderState,
    decision: LadderDecision,
    reasons: list[str],
    round_number: int,
    *,
    facts: RoundFacts | None = None,
    status: LadderStatus | None = None,
    window: int | None = None,
    remedies: int | None = None,
) -> LadderState:
    """The state with one more entry. A round that needed no remedy ends the row of remedies."""
    if remedies is None:
        keep = decision in ("passed_through", "halt")
        remedies = state.remedies if keep else 0
    entry = LadderEntry(
        round=round_number, window=state.window, decision=decision, reasons=reasons, facts=facts
    )
    return LadderState(
        status=status or state.status,
        window=window or state.window,
        is_weight_cap=state.is_weight_cap,
        grad_clip=state.grad_clip,
        remedies=remedies,
        history=[*state.history, entry],
    )
