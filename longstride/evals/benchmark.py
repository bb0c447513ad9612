"""The benchmark: held-out problems of each level, avg@k with 95% intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from longstride.data.held_out import benchmark_problems
from longstride.errors import DataError
from longstride.evals.intervals import mean_interval
from longstride.rewards.scoring import score_answer
from longstride.rewards.verifiers import verifier_of
from longstride.rollout.protocol import Generator, Progress, Sample, SamplingSettings
from longstride.store.artifacts import publish
from longstride.store.files import write_json, write_jsonl
from longstride.tokens.chat import render_prompt
from longstride.tokens.tokenizer import Tokenizer
from schemas.base import digest_of
from schemas.recipe import Recipe
from schemas.rows import EvalResult, EvalSample, Interval, Message, RLPrompt

SAMPLES = "samples.jsonl"
RESULT = "result.json"

__all__ = ["benchmark_problems", "prompt_set_digest", "run_benchmark"]


def run_benchmark(
    recipe: Recipe,
    generator: Generator,
    tokenizer: Tokenizer,
    label: str,
    checkpoint_digest: str,
    out: Path,
    window: int,
    progress: Progress | None = None,
) -> EvalResult:
    """Sample and score the benchmark; write samples, result and manifest.

    Raises:
        DataError: No sample could be judged, or a family or level has too few judged problems.
    """
    out.mkdir(parents=True, exist_ok=True)
    prompts = benchmark_problems(recipe)
    groups = generator.generate(
        [render_prompt(tokenizer, [Message(role="user", content=p.prompt)]) for p in prompts],
        recipe.benchmark.samples_per_problem,
        SamplingSettings(
            max_new_tokens=window,
            temperature=recipe.benchmark.temperature,
            top_p=recipe.benchmark.top_p,
            stop_ids=(tokenizer.end_id,),
        ),
        recipe.seed + recipe.benchmark.seed_offset,
        progress,
    )
    samples = [
        _score(recipe, tokenizer, prompt, number, sample, window)
        for prompt, group in zip(prompts, groups, strict=True)
        for number, sample in enumerate(group)
    ]
    result = _aggregate(recipe, prompts, samples, label, checkpoint_digest, window)
    write_jsonl(out / SAMPLES, samples)
    write_json(out / RESULT, result)
    publish(
        out,
        "eval",
        f"benchmark-{label}",
        parents={"checkpoint": checkpoint_digest},
        recipe_digest=recipe.digest(),
        counts={"problems": len(prompts), "samples": len(samples)},
    )
    return result


def _score(
    recipe: Recipe, tokenizer: Tokenizer, prompt: RLPrompt, number: int, sample: Sample, window: int
) -> EvalSample:
    text = tokenizer.decode_sample(sample.tokens)
    score = score_answer(
        prompt, text, sample.finish_reason, len(sample.tokens), window, recipe.rewards
    )
    return EvalSample(
        prompt_id=prompt.id,
        family=prompt.family,
        level=prompt.level,
        sample=number,
        correct=score.correct,
        length=len(sample.tokens),
        finish_reason=sample.finish_reason,
        text=text,
    )


def _aggregate(
    recipe: Recipe,
    prompts: Sequence[RLPrompt],
    samples: Sequence[EvalSample],
    label: str,
    checkpoint_digest: str,
    window: int,
) -> EvalResult:
    everything: dict[str, list[float]] = defaultdict(list)
    families: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    levels: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.correct is not None:
            for cell in (
                everything,
                families[sample.family],
                levels[f"{sample.family}/{sample.level}"],
            ):
                cell[sample.prompt_id].append(float(sample.correct))
    if not everything:
        raise DataError(
            f"none of the {len(samples)} benchmark samples could be judged; the verifiers failed"
        )
    lengths = [sample.length for sample in samples]
    return EvalResult(
        label=label,
        checkpoint_digest=checkpoint_digest,
        samples_per_problem=recipe.benchmark.samples_per_problem,
        temperature=recipe.benchmark.temperature,
        top_p=recipe.benchmark.top_p,
        window=window,
        prompt_set_digest=prompt_set_digest(prompts),
        verifier_version=", ".join(sorted({verifier_of(p).version() for p in prompts})),
        average=mean_interval(everything),
        by_family=_intervals(families),
        by_level=_intervals(levels),
        length_p50=float(np.percentile(lengths, 50)),
        length_p99=float(np.percentile(lengths, 99)),
        truncated_share=_share(s.finish_reason == "length" for s in samples),
        unjudged_share=_share(s.correct is None for s in samples),
        problem_means={p: sum(v) / len(v) for p, v in sorted(everything.items())},
    )


def prompt_set_digest(prompts: Sequence[RLPrompt]) -> str:
    """Digest of what is asked and what counts as right, whatever the order."""
    return digest_of(sorted([p.id, p.prompt, p.answer, p.verifier] for p in prompts))


def _intervals(cells: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Interval]:
    return {name: mean_interval(values) for name, values in sorted(cells.items())}


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / len(values)
