"""RL prompts: candidates apart from SFT and the benchmark, kept by the pass rate of the policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from longstride.data.cleaning import held_out_problems
from longstride.data.held_out import benchmark_problems
from longstride.data.intake import Quarantined
from longstride.data.measures.overlap import Problem
from longstride.data.prompt_sources import UserPrompts, read_prompts
from longstride.data.recuration import HARD
from longstride.data.tasks import draw
from longstride.data.text import order_key, problem_key
from longstride.errors import DataError
from longstride.rewards.judging import open_judge
from longstride.rewards.protocol import Judge
from longstride.rewards.scoring import Sampled, score_answers
from longstride.rollout.protocol import Generator, Progress, SamplingSettings
from longstride.store.artifacts import open_artifact, publish
from longstride.store.files import read_jsonl, write_json, write_jsonl
from longstride.tokens.chat import render_prompt
from longstride.tokens.tokenizer import Tokenizer
from schemas.artifacts import ArtifactManifest
from schemas.base import Contract
from schemas.recipe import Recipe
from schemas.rows import ChatExample, Message, RLPrompt
from schemas.stages import CurationConfig

PROMPTS = "prompts.jsonl"
DROPPED = "dropped.jsonl"
SUMMARY = "summary.json"
QUARANTINE = "quarantine.jsonl"


class DroppedPrompt(Contract):
    """A candidate that RL does not use."""

    id: str
    """The prompt."""
    family: str
    """Task family."""
    level: int
    """Difficulty."""
    pass_rate: float | None = None
    """Share of correct samples, when measured."""
    reason: str
    """`too_easy`, `never_solved`, `not_judged`, `prompt_too_long` or `over_plan`; of a prompt of
    the user's own also `proof`, `multi_part`, `binary`, `multiple_choice`, `no_answer`, `unsound`,
    `duplicate` or `overlap`."""


class FamilyCount(Contract):
    """One family against the plan."""

    kept: int = Field(ge=0)
    """Prompts that RL uses."""
    candidates: int = Field(ge=0)
    """Prompts measured or dropped."""
    planned: int | None = None
    """Prompts that the plan allows; null: all."""


class CurationSummary(Contract):
    """What became of the candidates."""

    candidates: int
    """Prompts measured or dropped."""
    kept: int
    """Prompts that RL uses."""
    histogram: dict[str, int]
    """Candidates by pass rate."""
    kept_share: dict[str, float]
    """Share of candidates kept, by `family/level`."""
    dropped: dict[str, int]
    """Candidates dropped, by reason."""
    unjudged_samples: int
    """Samples that no verifier could judge."""
    not_judged: dict[str, int] = Field(default_factory=dict)
    """The same by reason, for example `timeout`."""
    families: dict[str, FamilyCount] = Field(default_factory=dict)
    """Prompts by family against the plan."""
    rows: dict[str, int] = Field(default_factory=dict)
    """Rows of the user's own prompt sets, the quarantined ones included."""
    quarantined: int = Field(default=0, ge=0)
    """Rows of them that are no prompt."""
    rewritten: int = Field(default=0, ge=0)
    """Multiple-choice questions of them that were made open-ended."""


def build_candidates(
    recipe: Recipe, sft_dir: Path, user: UserPrompts | None = None
) -> list[RLPrompt]:
    """Candidate prompts, shuffled: generated ones and those of `user`.

    None is an SFT prompt or a benchmark problem.

    Raises:
        DataError: The SFT artifact is unusable, or no candidate is left.
    """
    open_artifact(sft_dir, "chat")
    taken = {problem_key(problem.prompt) for problem in benchmark_problems(recipe)}
    taken.update(problem_key(problem.text) for problem in _taught(sft_dir))
    own = user.prompts if user is not None else []
    taken.update(problem_key(prompt.prompt) for prompt in own)
    drawn = draw(recipe.tasks, recipe.rl.curation.candidates, recipe.seed, "rl")
    candidates = [prompt for prompt in drawn if problem_key(prompt.prompt) not in taken] + own
    if not candidates:
        raise DataError(
            f"all {len(drawn)} RL candidates occur among the SFT examples of {sft_dir} or in the "
            "benchmark; SFT data from elsewhere must leave the RL split of the task families "
            "alone, and rl.curation.candidates=0 needs rl.curation.sources"
        )
    candidates.sort(key=lambda prompt: order_key(recipe.seed, "rl", prompt.id))
    return candidates


def user_prompts(recipe: Recipe, sft_dir: Path) -> UserPrompts:
    """Usable prompts of the recipe's own sources, apart from SFT and from every evaluation.

    Raises:
        DataError: A source cannot be read, names an unknown verifier, or has no usable row.
    """
    sources = recipe.rl.curation.sources
    if not sources:
        return UserPrompts()
    held_out = held_out_problems(recipe) or [
        Problem(p.id, p.family, p.prompt) for p in benchmark_problems(recipe)
    ]
    return read_prompts(sources, [*held_out, *_taught(sft_dir)])


def _taught(sft_dir: Path) -> list[Problem]:
    """User turns of SFT."""
    return [
        Problem(example.id, example.family, message.content)
        for example in read_jsonl(sft_dir / "examples.jsonl", ChatExample)
        for message in example.messages
        if message.role == "user"
    ]


def curate(
    recipe: Recipe,
    candidates: Sequence[RLPrompt],
    generator: Generator,
    tokenizer: Tokenizer,
    out: Path,
    window: int,
    progress: Progress | None = None,
    model_judge: Judge | None = None,
    user: UserPrompts | None = None,
) -> ArtifactManifest:
    """Measure each candidate's pass rate under the policy and keep those inside the band.

    `user` says what became of the rows of the recipe's prompt sources, for the account.

    Raises:
        DataError: Fewer prompts survive than a generation batch needs; names the histogram.
    """
    out.mkdir(parents=True, exist_ok=True)
    # A prompt stays for all rounds, so it must leave room for the longest window of the ladder.
    room = recipe.extension[-1].window - max(window, recipe.ladder.windows[-1])
    rendered = [_render(tokenizer, prompt) for prompt in candidates]
    fitting = [i for i, ids in enumerate(rendered) if len(ids) <= room]
    with open_judge(recipe.rewards.judging, candidates, model_judge) as judge:
        samples = generator.generate(
            [rendered[i] for i in fitting],
            recipe.rl.curation.samples,
            _settings(recipe, tokenizer, window),
            recipe.seed,
            progress,
        )
        rewards = score_answers(
            [
                Sampled(
                    candidates[index],
                    tokenizer.decode_sample(sample.tokens),
                    sample.finish_reason,
                    len(sample.tokens),
                    window,
                )
                for index, group in zip(fitting, samples, strict=True)
                for sample in group
            ],
            judge,
            recipe.rewards,
        )
    measured: list[RLPrompt] = []
    unjudged = Counter(r.not_judged for r in rewards if r.not_judged is not None)
    left = iter(rewards)
    for index, group in zip(fitting, samples, strict=True):
        verdicts = [next(left).correct for _ in group]
        judged = [verdict for verdict in verdicts if verdict is not None]
        rate = sum(judged) / len(judged) if judged else None
        measured.append(candidates[index].model_copy(update={"pass_rate": rate}))
    too_long = [p for p, ids in zip(candidates, rendered, strict=True) if len(ids) > room]
    return _publish(recipe, measured, too_long, unjudged, out, user or UserPrompts())


def _settings(recipe: Recipe, tokenizer: Tokenizer, window: int) -> SamplingSettings:
    return SamplingSettings(
        max_new_tokens=window,
        temperature=recipe.rollout.temperature,
        top_p=recipe.rollout.top_p,
        stop_ids=(tokenizer.end_id,),
        repetition_run=recipe.rollout.repetition_run,
        repetition_threshold=recipe.rollout.repetition_threshold,
    )


def _render(tokenizer: Tokenizer, prompt: RLPrompt) -> list[int]:
    return render_prompt(tokenizer, [Message(role="user", content=prompt.prompt)])


def _why_dropped(prompt: RLPrompt, config: CurationConfig) -> str | None:
    if prompt.pass_rate is None:
        return "not_judged"
    if prompt.pass_rate >= config.pass_rate_below:
        return "too_easy"
    return "never_solved" if prompt.pass_rate <= config.pass_rate_above else None


def _publish(
    recipe: Recipe,
    measured: list[RLPrompt],
    too_long: list[RLPrompt],
    unjudged: Counter[str],
    out: Path,
    user: UserPrompts,
) -> ArtifactManifest:
    config = recipe.rl.curation
    reasons = {prompt.id: _why_dropped(prompt, config) for prompt in measured}
    reasons |= {prompt.id: "prompt_too_long" for prompt in too_long}
    reasons |= _over_plan([p for p in measured if reasons[p.id] is None], config)
    everyone = [*measured, *too_long]
    kept = [prompt for prompt in measured if reasons[prompt.id] is None]
    dropped = [_dropped(p, reason) for p in everyone if (reason := reasons[p.id]) is not None]
    dropped += [_dropped(prompt, reason) for prompt, reason in user.dropped]
    everyone += [prompt for prompt, _ in user.dropped]
    summary = _summarise(config, everyone, kept, dropped, unjudged, user)
    write_jsonl(out / DROPPED, dropped)
    write_jsonl(out / HARD, (p for p in measured if reasons[p.id] == "never_solved"))
    write_jsonl(
        out / QUARANTINE,
        (Quarantined(source=s, where=w, reason=r) for s, w, r in user.quarantined),
    )
    write_json(out / SUMMARY, summary)
    if len(kept) < recipe.rl.groups_per_batch:
        raise DataError(_too_few(recipe, summary))
    write_jsonl(out / PROMPTS, kept)
    return publish(
        out,
        "prompts",
        "rl-prompts",
        recipe_digest=recipe.digest(),
        counts={
            "candidates": summary.candidates,
            "kept": summary.kept,
            "unjudged_samples": summary.unjudged_samples,
            "quarantined": summary.quarantined,
            "rewritten": summary.rewritten,
            **{f"dropped_{reason}": count for reason, count in summary.dropped.items()},
        },
    )


def _over_plan(kept: Sequence[RLPrompt], config: CurationConfig) -> dict[str, str | None]:
    """Prompts beyond the plan of their family, in the order of the candidates."""
    counts: Counter[str] = Counter()
    over: dict[str, str | None] = {}
    for prompt in kept:
        counts[prompt.family] += 1
        if counts[prompt.family] > config.plan.get(prompt.family, len(kept)):
            over[prompt.id] = "over_plan"
    return over


def _dropped(prompt: RLPrompt, reason: str) -> DroppedPrompt:
    return DroppedPrompt(
        id=prompt.id, family=prompt.family, level=prompt.level, pass_rate=prompt.pass_rate,
        reason=reason,
    )  # fmt: skip


def _summarise(
    config: CurationConfig,
    everyone: list[RLPrompt],
    kept: list[RLPrompt],
    dropped: list[DroppedPrompt],
    unjudged: Counter[str],
    user: UserPrompts,
) -> CurationSummary:
    cells = Counter(f"{p.family}/{p.level}" for p in everyone)
    kept_cells = Counter(f"{p.family}/{p.level}" for p in kept)
    rates = Counter("unmeasured" if p.pass_rate is None else f"{p.pass_rate:.2f}" for p in everyone)
    families = Counter(p.family for p in everyone)
    kept_families = Counter(p.family for p in kept)
    return CurationSummary(
        candidates=len(everyone),
        kept=len(kept),
        histogram=dict(sorted(rates.items())),
        kept_share={cell: kept_cells[cell] / count for cell, count in sorted(cells.items())},
        dropped=dict(sorted(Counter(d.reason for d in dropped).items())),
        unjudged_samples=unjudged.total(),
        not_judged=dict(sorted(unjudged.items())),
        families={
            family: FamilyCount(
                kept=kept_families[family],
                candidates=families[family],
                planned=config.plan.get(family),
            )
            for family in sorted({*families, *config.plan})
        },
        rows=dict(sorted(user.rows.items())),
        quarantined=len(user.quarantined),
        rewritten=user.rewritten,
    )


def _too_few(recipe: Recipe, summary: CurationSummary) -> str:
    config = recipe.rl.curation
    easy, hard = summary.dropped.get("too_easy", 0), summary.dropped.get("never_solved", 0)
    fix = (
        "most are too easy: add harder levels"
        if easy > hard
        else "most are never solved: train SFT longer or add easier levels"
    )
    return (
        f"only {summary.kept} of {summary.candidates} RL prompts have a pass rate in "
        f"({config.pass_rate_above:g}, {config.pass_rate_below:g}), but a batch needs "
        f"rl.groups_per_batch={recipe.rl.groups_per_batch}; prompts by pass rate: "
        f"{summary.histogram}; {fix}, or raise rl.curation.candidates"
    )
