"""Generated problems with their solutions, as running text for pretraining."""

from __future__ import annotations

from collections.abc import Iterator

from longstride.data.tasks import draw
from longstride.data.text import order_key
from longstride.data.traces import NoTraceError, worked_steps
from longstride.errors import DataError
from schemas.data import ReasoningGymSource, TaskFamily
from schemas.rows import Document, RLPrompt

_PROBLEMS_A_SHEET = 12
_TEXT_SEED = 101
"""Keeps the worked problems of the corpus apart from the examples that SFT draws first."""


def worked_problems(
    source: ReasoningGymSource, seed: int, tasks: list[TaskFamily]
) -> Iterator[Document]:
    """Sheets of a dozen problems, each with its steps and answer.

    Problems come from the SFT split only: neither RL prompts nor the benchmark are ever in them.

    Raises:
        DataError: The families have fewer distinct problems than `source.documents`.
    """
    found = draw(tasks, source.documents, seed + _TEXT_SEED, "sft")
    if len(found) < source.documents:
        raise DataError(
            f"source {source.name!r} asks for {source.documents} problems, but the task families "
            f"have only {len(found)} distinct ones in the SFT split; lower documents or widen the "
            "levels"
        )
    found.sort(key=lambda prompt: order_key(seed, source.name, prompt.id))
    for start in range(0, len(found), _PROBLEMS_A_SHEET):
        sheet = found[start : start + _PROBLEMS_A_SHEET]
        path = f"sheet-{start // _PROBLEMS_A_SHEET:05d}"
        yield Document(
            id=f"{source.name}/{path}",
            text="\n\n".join(map(_worked, sheet)),
            domain=source.domain,
            source=source.name,
            path=path,
        )


def _worked(prompt: RLPrompt) -> str:
    try:
        steps = worked_steps(prompt)
    except NoTraceError:
        steps = ""
    solution = f"{steps}\nAnswer: {prompt.answer}" if steps else f"Answer: {prompt.answer}"
    return f"{prompt.prompt}\n{solution}"
