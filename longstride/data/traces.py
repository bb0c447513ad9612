"""Worked solutions: "<think>steps</think>answer", with or without a mistake that is corrected.

A trace is terse on purpose: RL windows of small models are 40 to 80 tokens, and every digit is a
token. With reflection one step is first written wrong, then "Wait," (or "Recheck:", "However,"),
then the right step, and the rest goes on from the right value.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from typing import Any

from longstride.errors import DataError
from longstride.rewards.verifiers import accepts
from schemas.rows import RLPrompt

MARKERS = {"Wait,": 0.7, "Recheck:": 0.15, "However,": 0.15}
"""How a correction begins, and how often."""


class NoTraceError(DataError):
    """A problem cannot be solved step by step by its family's writer."""


Steps = list[str]
Writer = Callable[[dict[str, Any]], tuple[Steps, object]]
"""Problem record -> (steps, worked-out answer)."""
Spoiler = Callable[[str, random.Random], str | None]


def write_trace(prompt: RLPrompt, rng: random.Random, reflection: bool) -> str:
    """Write a worked solution whose final answer is the prompt's reference answer.

    Raises:
        DataError: The family has no writer, the problem is beyond it (`NoTraceError`), or the
            worked-out answer is not the reference.
    """
    if prompt.family not in TRACE_WRITERS:
        raise DataError(
            f"task family {prompt.family!r} has no trace writer, so it cannot be taught by SFT; "
            f"families with one: {sorted(TRACE_WRITERS)}"
        )
    writer, spoiler = TRACE_WRITERS[prompt.family]
    steps, answer = writer(prompt.entry["metadata"])
    if str(answer) != prompt.answer or accepts(prompt, str(answer)) is not True:
        raise NoTraceError(
            f"prompt {prompt.id}: worked out {answer}, but the reference is {prompt.answer}"
        )
    if reflection:
        steps = _with_mistake(steps, spoiler, rng, prompt)
    return f"<think>{' '.join(steps)}</think>{answer}"


def worked_steps(prompt: RLPrompt) -> str:
    """The steps alone, without tags or answer; empty for a family without a writer."""
    if prompt.family not in TRACE_WRITERS:
        return ""
    return " ".join(TRACE_WRITERS[prompt.family][0](prompt.entry["metadata"])[0])


def _with_mistake(steps: Steps, spoiler: Spoiler, rng: random.Random, prompt: RLPrompt) -> Steps:
    order = list(range(len(steps)))
    rng.shuffle(order)
    for index in order:
        wrong = spoiler(steps[index], rng)
        if wrong is not None:
            marker = rng.choices(list(MARKERS), list(MARKERS.values()))[0]
            return [*steps[:index], wrong, marker, *steps[index:]]
    raise NoTraceError(f"prompt {prompt.id} has no step that can be got wrong")


# --- arithmetic -----------------------------------------------------------------------------------


def _chain_sum(metadata: dict[str, Any]) -> tuple[Steps, object]:
    """Running sums from left to right, one step a term: 4 + 3 - 9 gives 4+3=7 7-9=-2."""
    words = metadata["expression"].split()
    total = int(words[0])
    steps = []
    for operator, word in zip(words[1::2], words[2::2], strict=True):
        term = int(word)
        result = total + term if operator == "+" else total - term
        steps.append(f"{total}{operator}{term}={result}")
        total = result
    return steps or [f"{total}={total}"], total


def _basic_arithmetic(metadata: dict[str, Any]) -> tuple[Steps, object]:
    """One operation a step, innermost parentheses first; + and - only."""
    expression = metadata["expression"]
    steps: Steps = []

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
                return -number
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                operand = value(inner)
                steps.append(f"0-{operand}={-operand}")
                return -operand
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
                a, b = value(left), value(right)
                sign = "+" if isinstance(operator, ast.Add) else "-"
                result = a + b if sign == "+" else a - b
                steps.append(f"{a}{sign}{b}={result}")
                return result
        raise NoTraceError(
            f"expression {expression!r} holds more than + and -; set operators to '+-' in the "
            "level's parameters"
        )

    total = value(ast.parse(expression, mode="eval").body)
    return steps or [f"{total}={total}"], total


def _gcd(metadata: dict[str, Any]) -> tuple[Steps, object]:
    """Euclid's algorithm, the remainder of each division a step: 12%8=4 8%4=0."""
    numbers = [int(number) for number in metadata["numbers"]]
    steps = []
    a = numbers[0]
    for b in numbers[1:]:
        while b:
            steps.append(f"{a}%{b}={a % b}")
            a, b = b, a % b
    return steps, a


def _count_bits(metadata: dict[str, Any]) -> tuple[Steps, object]:
    """Halve until nothing is left, each remainder a bit: 6=2*3+0 3=2*1+1 1=2*0+1 0+1+1=2."""
    number = int(metadata["number"])
    bits, steps = [], []
    while number:
        bits.append(number % 2)
        steps.append(f"{number}=2*{number // 2}+{number % 2}")
        number //= 2
    return [*steps, f"{'+'.join(map(str, bits)) or 0}={sum(bits)}"], sum(bits)


def _spoil_result(step: str, rng: random.Random) -> str | None:
    """Change the last number of an equation by a little."""
    match = re.search(r"(-?\d+)$", step)
    if match is None or "=" not in step:
        return None
    right = int(match[1])
    wrong = right + rng.choice([-2, -1, 1, 2])
    if wrong < 0 <= right:
        wrong = right + abs(wrong - right)
    return step[: match.start()] + str(wrong)


# --- letters and lists ----------------------------------------------------------------------------


def _spell_backward(metadata: dict[str, Any]) -> tuple[Steps, object]:
    """Spell it, then spell it from the end: s-u-n n-u-s."""
    word = metadata["word"]
    return ["-".join(word), "-".join(reversed(word))], word[::-1]


def _spoil_spelling(step: str, rng: random.Random) -> str | None:
    return _swap_neighbours(step, "-", rng)


def _letter_counting(metadata: dict[str, Any]) -> tuple[Steps, object]:
    """The letter's count in each word, then the sum: to:1 the:1 1+1=2."""
    letter = metadata["target_letter"].lower()
    counts = [(word, word.lower().count(letter)) for word in metadata["span"]]
    terms = [str(count) for _, count in counts if count] or ["0"]
    total = sum(count for _, count in counts)
    steps = [f"{word}:{count}" for word, count in counts]
    if len(terms) > 1:
        steps.append(f"{'+'.join(terms)}={total}")
    return steps, total


def _spoil_count(step: str, rng: random.Random) -> str | None:
    word, colon, count = step.rpartition(":")
    if not colon or not count.isdigit():
        return _spoil_result(step, rng)
    return f"{word}:{int(count) + rng.choice([1, 2])}"


def _number_sorting(metadata: dict[str, Any]) -> tuple[Steps, object]:
    """Insertion sort, the sorted part after each number a step: 3 1<3 1<2<3."""
    sign = "<" if metadata["direction"] == "ascending" else ">"
    part: list[str] = []
    steps = []
    for number in metadata["original_numbers"]:
        part = sorted([*part, number], key=float, reverse=sign == ">")
        steps.append(sign.join(part))
    return steps, part


def _spoil_order(step: str, rng: random.Random) -> str | None:
    return _swap_neighbours(step, "<" if "<" in step else ">", rng)


def _swap_neighbours(step: str, separator: str, rng: random.Random) -> str | None:
    parts = step.split(separator)
    places = [i for i in range(len(parts) - 1) if parts[i] != parts[i + 1]]
    if not places:
        return None
    place = rng.choice(places)
    parts[place : place + 2] = reversed(parts[place : place + 2])
    return separator.join(parts)


TRACE_WRITERS: dict[str, tuple[Writer, Spoiler]] = {
    "chain_sum": (_chain_sum, _spoil_result),
    "basic_arithmetic": (_basic_arithmetic, _spoil_result),
    "gcd": (_gcd, _spoil_result),
    "count_bits": (_count_bits, _spoil_result),
    "spell_backward": (_spell_backward, _spoil_spelling),
    "letter_counting": (_letter_counting, _spoil_count),
    "number_sorting": (_number_sorting, _spoil_order),
}
"""By family: how its steps are written, and how one of them is got wrong."""
