"""The benchmark: held-out problems of each level, avg@k with 95% intervals."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from longstride.data.held_out import benchmark_problems
from longstride.errors import DataError
from longstride.evals.intervals import mean_interval
from longstride.rewards.judging import open_judge
from longstride.rewards.protocol import Judge
from longstride.rewards.scoring import Sampled, score_answers
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
    model_judge: Judge | None = None,
) -> EvalResult:
    """Sample and score the benchmark; write samples, result and manifest.

    Raises:
        DataError: No sample could be judged, or a family or level has too few judged problems.
    """
    out.mkdir(parents=True, exist_ok=True)
    prompts = benchmark_problems(recipe)
    with open_judge(recipe.rewards.judging, prompts, model_judge) as judge:
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
        samples = _score(recipe, tokenizer, judge, prompts, groups, window)
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
    recipe: Recipe,
    tokenizer: Tokenizer,
    judge: Judge,
    prompts: Sequence[RLPrompt],
    groups: Sequence[Sequence[Sample]],
    window: int,
) -> list[EvalSample]:
    numbers = [number for group in groups for number in range(len(group))]
    sampled = [
        Sampled(
            prompt,
            tokenizer.decode_sample(sample.tokens),
            sample.finish_reason,
            len(sample.tokens),
            window,
        )
        for prompt, group in zip(prompts, groups, strict=True)
        for sample in group
    ]
    rewards = score_answers(sampled, judge, recipe.rewards)
    return [
        EvalSample(
            prompt_id=one.prompt.id,
            family=one.prompt.family,
            level=one.prompt.level,
            sample=number,
            correct=reward.correct,
            not_judged=reward.not_judged,
            length=one.length,
            finish_reason=one.finish_reason,
            text=one.text,
        )
        for number, one, reward in zip(numbers, sampled, rewards, strict=True)
    ]


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
        reasons = dict(Counter(sample.not_judged for sample in samples))
        raise DataError(
            f"none of the {len(samples)} benchmark samples could be judged; reasons: {reasons}"
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
