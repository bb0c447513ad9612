"""A made-up run with everything a report can show; deterministic and wholly synthetic."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

from longstride.report.record import AttemptRecord, CollectedRun
from schemas.audit import AuditRow
from schemas.ladder import LadderEntry, LadderState, RoundFacts
from schemas.rows import EvalResult, EvalSample, Interval, Rollout
from schemas.run import Evaluation, MetricPoint, TaskMetrics, TaskRecord
from schemas.verdict import Check, Override, Verdict

T0 = 1_790_000_000.0
WINDOWS = [40, 48, 48, 56, 64, 72]
DECISIONS = ["expand", "hold", "expand", "remedy", "expand", "complete"]
_WORDS = (
    "<think>\n I need 17 + 26 . 17 + 26 = 42 ? Wait , let me recheck : 7 + 6 = 13 , carry 1 . "
    "So 1 + 2 + 1 = 4 , the sum is 43 . \n</think> \n 43"
)
_LONGER = (
    "<think>\n The list is 9 , 4 , 7 . However , it must be descending . Hmm , 9 > 7 > 4 . "
    "\n</think> \n 9 7 4"
)
WORDS, LONGER = _WORDS.split(" "), _LONGER.split(" ")


class _Clock:
    """Adds tasks one after the other."""

    def __init__(self) -> None:
        self.now = T0
        self.tasks: list[TaskRecord] = []
        self.last = ""
        self.random = random.Random(7)

    def group(self, name: str, parent: str | None = "root") -> str:
        path = f"{parent}/{name}" if parent else name
        after = [self.last] if self.last else []
        self.tasks.append(TaskRecord(path=path, display_name=name, parent=parent, kind="dag",
                                     state="SUCCEEDED", depends_on=after, attempts=0))  # fmt: skip
        return path

    def task(self, parent: str, name: str, seconds: float, after: list[str] | None = None,
             outputs: tuple[str, ...] = (), **fields: Any) -> str:  # fmt: skip
        path = f"{parent}/{name}"
        start = self.now + 0.05
        took = seconds * self.random.uniform(0.8, 1.2)
        values: dict[str, Any] = {
            "path": path, "display_name": name, "parent": parent, "kind": "container",
            "state": "SUCCEEDED", "depends_on": after or [], "started_at": start,
            "finished_at": start + took, "attempts": 1, "cpu_seconds": took * 1.6,
            "peak_memory_bytes": int(3e8 + 4e7 * seconds),
            "artifacts": {n: f"file:///runs/tiny-0001/{path}/{n}" for n in outputs},
        }  # fmt: skip
        self.tasks.append(TaskRecord(**(values | fields)))
        self.now = start + took
        return path


def _pipeline() -> tuple[list[TaskRecord], list[str]]:
    clock = _Clock()
    root = clock.group("root", None)
    gates: list[str] = []

    def gate(parent: str, name: str, after: str) -> str:
        path = clock.task(parent, name, 1.4, [after], ("verdict", "report"))
        gates.append(path)
        return path

    setup = clock.task(root, "prerequisites", 1.0, outputs=("recipe", "environment"))
    stage = clock.group("data", root)
    corpus = clock.task(stage, "corpus", 9, [setup], ("documents",), cache_hit=True,
                        cpu_seconds=0.0)  # fmt: skip
    tokenizer = clock.task(stage, "tokenizer", 5, [corpus], ("tokenizer",))
    dedup = clock.task(stage, "decontamination-index", 4, [corpus], ("index",))
    pack = clock.task(stage, "pack", 4, [tokenizer, dedup], ("packed",))
    clock.last = gate(stage, "gate-e1", pack)
    stage = clock.group("pretrain", root)
    train = clock.task(stage, "pretrain", 55, outputs=("checkpoint", "metrics"))
    gate(stage, "gate-e7", train)
    clock.last = stage
    for number in range(1, 5):
        stage = clock.group(f"extend-{number}", root)
        pack = clock.task(stage, "pack", 2.5, [setup], ("packed",))
        checked = gate(stage, "gate-e2", pack)
        retried = {"attempts": 2} if number == 2 else {}
        train = clock.task(stage, "extend", 16, [checked], ("checkpoint", "metrics"), **retried)
        gate(stage, "gate-e7", train)
        clock.last = stage
    stage = clock.group("sft", root)
    data = clock.task(stage, "sft-data", 4, outputs=("examples",))
    checked = gate(stage, "gate-e3", data)
    train = clock.task(stage, "sft", 62, [checked], ("checkpoint", "metrics"))
    gate(stage, "gate-e7", train)
    clock.last = stage
    before = clock.task(root, "benchmark-before", 22, [stage], ("result",))
    stage = clock.group("rl-prompts", root)
    prompts = clock.task(stage, "prompts", 3, outputs=("prompts",))
    curate = clock.task(stage, "curate", 12, [prompts], ("prompts",))
    clock.last = gate(stage, "gate-e4", curate)
    for number in range(1, 7):
        stage = clock.group(f"round-{number}", root)
        rollout = clock.task(stage, "cispo", 38, [setup],
                             ("checkpoint", "metrics", "rollouts", "ladder_state"))  # fmt: skip
        e5 = gate(stage, "gate-e5", rollout)
        e6 = clock.task(stage, "expansion-gate", 0.6, [rollout, e5], ("ladder_state",))
        e7 = gate(stage, "gate-e7", rollout)
        clock.task(stage, "publish", 0.4, [e6, e7], ("checkpoint",))
        clock.last = stage
    stage = clock.group("benchmark", root)
    after = clock.task(stage, "benchmark-after", 24, outputs=("result",))
    gate(stage, "gate-e8", after)
    clock.task(root, "report", 1.2, [before, stage], ("report",))
    return clock.tasks, gates


def _check(name: str, what: str, observed: Any, rule: str, severity: str = "block",
           passed: bool = True, offenders: int = 0) -> Check:  # fmt: skip
    return Check(
        name=name, description=what, severity=severity, passed=passed, observed=observed,
        threshold=rule, offenders=[f"row-{i * 37:05d}" for i in range(offenders)],
        origin="M1 report, section 3" if severity == "block" else "chosen for the tiny scale",
    )  # fmt: skip


def _checks(edge: str, warn: bool) -> list[Check]:
    table = {
        "E1": [("valid_utf8_share", "Documents are valid UTF-8 without NUL.", 1.0, ">= 1"),
               ("duplicate_share", "Exact duplicates after normalisation.", 0.00042, "<= 0.001"),
               ("reasoning_share", "STEM, code, book and reasoning text.", 0.7031, "0.68 to 0.72"),
               ("contaminated_documents", "12-gram overlap with benchmark problems.", 0, "== 0"),
               ("unknown_token_share", "Tokens the tokenizer does not know.", 0.0, "<= 0")],
        "E2": [("row_length", "Every row is exactly one window long.", "all 412 rows", "== 128"),
               ("positions_restart", "Positions restart at each document.", True, "true"),
               ("long_share", "Tokens from documents of half a window.", 0.4377, ">= 0.4"),
               ("truncated_documents", "Documents cut to fit.", 0.0071, "<= 0.01"),
               ("padding_share", "Padding tokens.", 0.012, "<= 0.05")],
        "E3": [("roles_alternate", "User and assistant alternate.", 1.0, ">= 1"),
               ("think_tags", "Exactly one well formed think block.", 1.0, ">= 0.995"),
               ("trained_prompt_tokens", "Prompt tokens with loss.", 0, "== 0"),
               ("reflection_share", "Examples with a noticed mistake.", 0.3121, ">= 0.27"),
               ("benchmark_overlap", "8-gram hits in the benchmark.", 0, "== 0")],
        "E4": [("answers_verify", "Reference answers verify against themselves.", 1.0, ">= 1"),
               ("pass_rate_range", "Prompts with 0 < pass rate < 0.9.", 1.0, ">= 1"),
               ("kept_share", "Candidates left after curation.", 0.4633, ">= 0.2"),
               ("family_balance", "Largest deviation from the plan.", 0.031, "<= 0.05"),
               ("prompt_length", "Longest prompt in tokens.", 38, "<= 88")],
        "E5": [("finite_logprobs", "Non-finite log-probabilities.", 0, "== 0"),
               ("probability_correlation", "Sampler against trainer.", 0.99987, ">= 0.99"),
               ("zero_spread_groups", "Groups without reward spread.", 0.3438, "<= 0.8"),
               ("unjudged_share", "Answers that no verifier could judge.", 0.0, "<= 0.01"),
               ("capped_share", "Tokens at the importance-weight cap.", 0.0013, "<= 0.2")],
        "E7": [("finite_tensors", "Tensors with a non-finite value.", 0, "== 0"),
               ("names_and_shapes", "Tensors match the configuration.", True, "true"),
               ("loads_and_answers", "A fresh process loads it and answers.", True, "true"),
               ("parent_digest", "The parent is the checkpoint before.", "sha256:51c0", "recorded"),
               ("perplexity_change", "On a fixed set, against the parent.", -0.0842, "<= 0.02")],
        "E8": [("sample_count", "Every declared sample was scored.", 1200, "== 1200"),
               ("settings_equal", "Same settings as the baseline.", True, "true"),
               ("unjudged_share", "Samples not judged.", 0.0, "<= 0.01"),
               ("paired_change_high", "Upper end of the paired change.", 0.1793, ">= -0.01"),
               ("truncated_share", "Samples cut at the window.", 0.021, "<= 0.1")],
    }  # fmt: skip
    checks = [_check(*row) for row in table[edge]]
    checks[-1].severity = "warn"
    if warn:
        checks[-1].passed = False
        checks[-1].observed, checks[-1].offenders = 0.0613, [f"row-{i}" for i in range(7)]
    return checks


def _verdicts(gates: list[str]) -> list[Verdict]:
    verdicts = []
    for index, path in enumerate(gates):
        parts = path.split("/")
        verdicts.append(Verdict(
            edge=parts[-1].rsplit("-", 1)[-1].upper(), stage=parts[-2], passed=True,
            checks=_checks(parts[-1].rsplit("-", 1)[-1].upper(), index in (5, 13)),
            rows=400 + 311 * index, suite_digest=f"sha256:{index:064x}",
            subject_digest=f"sha256:{index * 7919:064x}",
        ))  # fmt: skip
    verdicts[8].override = Override(operator="m.weber", reason="known copy of the licence text")
    return verdicts


def _ladder() -> LadderState:
    history = []
    for index, (window, decision) in enumerate(zip(WINDOWS, DECISIONS, strict=True)):
        p99 = window * (0.72 if decision == "hold" else 0.95)
        first = 2.1 - 0.12 * index
        last = first * (1.34 if decision == "remedy" else 0.94)
        history.append(LadderEntry(
            round=index + 1, window=window, decision=decision,
            reasons=[f"p99 length {p99:.1f} is {p99 / window:.2f} of the window (>= 0.90)",
                     f"perplexity changed by {last / first - 1:+.2f} (<= 0.15)"],
            facts=RoundFacts(
                window=window, perplexity_first=first, perplexity_last=last, length_p50=24 + index,
                perplexity_head=last * 0.97, perplexity_tail=last * 1.06, length_p99=p99,
                length_p99_correct=p99 - 6, length_p99_wrong=p99, repetition_share=0.0,
                truncated_share=0.01 + 0.01 * index, reward_mean=0.32 + 0.07 * index, samples=512),
        ))  # fmt: skip
    return LadderState(
        status="complete", window=72, is_weight_cap=3.0, grad_clip=0.5, history=history
    )


def _training_metrics(rng: random.Random) -> list[TaskMetrics]:
    metrics, loss = [], 6.2
    plan = [("pretrain", 900, 8e-4), ("extend-1", 60, 3e-4), ("extend-2", 60, 2e-4),
            ("extend-3", 60, 2e-4), ("extend-4", 60, 1e-4), ("sft", 240, 1e-3)]  # fmt: skip
    for stage, steps, rate in plan:
        points = []
        for step in range(1, steps + 1):
            target = 2.6 if stage == "pretrain" else 2.3 if stage != "sft" else 0.55
            loss += (target - loss) * (0.011 if steps > 300 else 0.02)
            noisy = loss + rng.gauss(0, 0.05)
            values = {
                "train/loss": noisy, "train/perplexity": math.exp(noisy),
                "train/grad_norm": abs(rng.gauss(0.8, 0.2)) + 8 / step,
                "train/learning_rate": rate * min(1, step / 20) * (1 - 0.9 * step / steps),
                "train/tokens_per_second": 5200 + rng.gauss(0, 160),
            }  # fmt: skip
            points += [MetricPoint(step=step, name=n, value=v) for n, v in values.items()]
        name = "extend" if stage.startswith("extend") else stage
        if name == "extend":
            points += _context(rng, steps)
        metrics.append(TaskMetrics(task=f"root/{stage}/{name}", stage=stage, points=points))
    return metrics


def _context(rng: random.Random, steps: int) -> list[MetricPoint]:
    points = []
    for step in (0, steps):
        for first, end in ((0, 16), (16, 32), (32, 64)):
            value = 9.0 + end / 16 * (step == 0) + rng.random()
            name = f"validation/perplexity/positions_{first}_{end}"
            points.append(MetricPoint(step=step, name=name, value=value))
        for length in (32, 64):
            for depth in (0, 50, 100):
                cell = f"passkey/length_{length}/depth_{depth}"
                values = {"accuracy": 0.1 + 0.6 * bool(step), "margin": 2.0 * bool(step),
                          "rank": 5.5 - 3 * bool(step)}  # fmt: skip
                points += [MetricPoint(step=step, name=f"{cell}/{n}", value=v)
                           for n, v in values.items()]  # fmt: skip
    points.append(MetricPoint(step=steps, name="train/spikes", value=3))
    return [*points, MetricPoint(step=steps, name="train/back_offs", value=1)]


def _rl_metrics(rng: random.Random) -> list[TaskMetrics]:
    metrics = []
    for index, window in enumerate(WINDOWS):
        points = []
        for step in range(1, 33):
            progress = (index * 32 + step) / 192
            wmax = math.exp(abs(rng.gauss(0.2 + 0.04 * (step % 16), 0.35)))
            values = {
                "rl/loss": rng.gauss(0, 0.02), "rl/grad_norm": abs(rng.gauss(0.3, 0.1)) + 0.02,
                "rl/is_weight/p99": 1 + 0.25 * wmax * (step % 16) / 16,
                "rl/is_weight/max": wmax * 2,
                "rl/is_weight/capped_fraction": max(0, rng.gauss(0.002, 0.002)),
                "rl/gradient_share/reflection": 0.1 + 0.02 * rng.random(),
            }  # fmt: skip
            if step % 16 == 1:
                values |= {
                    "rl/reward/mean": 0.3 + 0.5 * progress + rng.gauss(0, 0.02),
                    "rl/accuracy": 0.31 + 0.45 * progress + rng.gauss(0, 0.02),
                    "rl/length/p50": 24 + 8 * progress, "rl/length/p99": window * 0.94,
                    "rl/window": window, "rl/perplexity": 2.1 - 0.8 * progress,
                    "rl/entropy": 0.7 - 0.35 * progress, "rl/groups/kept": 22 - 6 * progress,
                    "rl/groups/dropped": 10 + 6 * progress,
                    "rl/probability_correlation": 0.9999 - 1e-5 * rng.random(),
                    "rl/tokens/generated": 7000 + 900 * index,
                }  # fmt: skip
            points += [MetricPoint(step=step, name=n, value=v) for n, v in values.items()]
        metrics.append(TaskMetrics(
            task=f"root/round-{index + 1}/cispo", stage=f"round-{index + 1}", points=points
        ))  # fmt: skip
    return metrics


def _rollouts(rng: random.Random) -> tuple[dict[str, list[Rollout]], dict[str, str]]:
    asked = ("User:", "What", "is", "17", "plus", "26?", "\nAssistant:")
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys([*asked, *WORDS, *LONGER]))}
    prompt = [vocabulary[word] for word in asked]
    rollouts: dict[str, list[Rollout]] = {}
    for number, window in enumerate(WINDOWS, start=1):
        rows = []
        for group in range(3):
            for sample in range(8):
                words = WORDS if group != 1 else LONGER
                right = rng.random() < 0.5
                words = words if right else words[: rng.randrange(8, len(words))]
                ids = [vocabulary[w] for w in words]
                logp = [-abs(rng.gauss(0, 0.6)) for _ in ids]
                judged = (number, group, sample) != (2, 0, 3)
                rows.append(Rollout(
                    prompt_id=f"basic-arithmetic-{number}{group}", group=group, sample=sample,
                    batch=1, prompt_tokens=prompt, tokens=ids, logprobs=logp,
                    trainer_logprobs=[v + rng.gauss(0, 1e-4) for v in logp],
                    importance_weights=[math.exp(rng.gauss(0, 0.28)) * (7 if rng.random() < 0.02
                                        else 1) for _ in ids],
                    text=" ".join(words), finish_reason="stop" if right else "length",
                    reward=(1.0 if right else -0.1) if judged else None,
                    rewards={"correct": float(right), "overlong": 0.0 if right else -0.1},
                    correct=right if judged else None,
                    advantage=(0.94 if right else -1.06) if group != 2 else None, window=window,
                ))  # fmt: skip
        rollouts[f"round-{number}"] = rows
    return rollouts, {str(i): (w if w in ("User:", "<think>\n") else f" {w}")
                      for w, i in vocabulary.items()}  # fmt: skip


def _audit(rng: random.Random) -> dict[str, list[AuditRow]]:
    """Sixteen off-policy rounds of two batches a round; reflection is rare and gets likelier."""
    rounds: dict[str, list[AuditRow]] = {}
    for number in range(1, len(WINDOWS) + 1):
        rows = []
        for batch, update in itertools.product(range(2), range(1, 17)):
            rare = 1 + 0.15 * update * rng.uniform(0.9, 1.1)
            for bucket, tokens, p, ratio in (
                ("wait", 12, 0.05 * number, rare), ("however", 6, 0.02 * number, rare),
                ("reflection", 18, 0.04 * number, rare), ("other", 2000, 0.7, 1.01),
            ):  # fmt: skip
                dropped = round(tokens * min(1.0, max(0.0, (ratio - 1.1) / 2)))
                rows.append(AuditRow(
                    batch=batch, off_policy_round=update, bucket=bucket, tokens=tokens,
                    probability_old=p * tokens, probability_new=min(1.0, p * ratio) * tokens,
                    ratio=ratio * tokens, capped=0, ppo_dropped=dropped,
                    gradient=1e-3 * tokens * ratio, ppo_dropped_gradient=1e-3 * dropped * ratio,
                ))  # fmt: skip
        rounds[f"round-{number}"] = rows
    return rounds


def _interval(means: list[float]) -> Interval:
    from longstride.evals.intervals import mean_interval

    return mean_interval({str(i): [m] * 4 for i, m in enumerate(means)})


def _evaluation(label: str, lift: float, rng: random.Random) -> Evaluation:
    by_level: dict[str, list[float]] = {}
    samples, means = [], {}
    for family, base in (("basic_arithmetic", 0.6), ("chain_sum", 0.45), ("number_sorting", 0.3)):
        for level in range(3):
            for problem in range(25):
                chance = min(0.98, max(0.02, base - 0.17 * level + lift + rng.gauss(0, 0.08)))
                mean = sum(rng.random() < chance for _ in range(4)) / 4
                name = f"{family}-{level}-{problem:02d}"
                means[name] = mean
                by_level.setdefault(f"{family}/{level}", []).append(mean)
                samples.append(EvalSample(
                    prompt_id=name, family=family, level=level, sample=0, correct=mean > 0.5,
                    length=20 + 9 * level, finish_reason="stop",
                    text=" ".join(WORDS) if problem == 3 else "",
                ))  # fmt: skip
    families: dict[str, list[float]] = {}
    for name, values in by_level.items():
        families.setdefault(name.split("/")[0], []).extend(values)
    return Evaluation(samples=samples, result=EvalResult(
        label=label, checkpoint_digest="sha256:" + ("a" if lift else "b") * 64,
        samples_per_problem=4, temperature=1.0, top_p=0.95, window=80,
        prompt_set_digest="sha256:" + "c" * 64, verifier_version="reasoning-gym 0.1.25",
        average=_interval(list(means.values())),
        by_family={n: _interval(v) for n, v in families.items()},
        by_level={n: _interval(v) for n, v in by_level.items()},
        length_p50=28.0 + 30 * lift, length_p99=61.0 + 60 * lift, truncated_share=0.021,
        unjudged_share=0.0, problem_means=means,
    ))  # fmt: skip


def _recipe() -> dict[str, Any]:
    return {
        "name": "tiny", "version": "1", "description": "The whole path at 1:1000 scale.", "seed": 0,
        "pretrain": {"window": 32, "tokens": 200000, "learning_rate": 8e-4,
                     "optimizer": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-15}},
        "extension": [{"window": w, "rope_base": b} for w, b in
                      ((64, 2e4), (96, 4e4), (128, 8e4), (160, 1e5))],
        "rl": {"algorithm": {"kind": "cispo", "is_weight_cap": 5.0, "mask_low": None},
               "rounds": 6, "group_size": 8, "minimum_probability_correlation": 0.99},
        "ladder": {"rungs": [40, 48, 56, 64, 72, 80], "remedy_cap_factor": 0.5},
        "provenance": {"rl.algorithm.is_weight_cap": "chosen", "ladder.rungs": "disclosed",
                       "pretrain.optimizer.eps": "disclosed"},
    }  # fmt: skip


def example_run() -> CollectedRun:
    """A run that succeeded."""
    rng = random.Random(20)
    tasks, gates = _pipeline()
    rollouts, tokens = _rollouts(rng)
    retried = next(t for t in tasks if t.attempts == 2)
    start, end = retried.started_at or 0, retried.finished_at or 0
    return CollectedRun(
        run_id="tiny-20260921-0001", name="tiny", state="SUCCEEDED", started_at=T0,
        finished_at=max(t.finished_at or 0 for t in tasks), tasks=tasks, verdicts=_verdicts(gates),
        verdict_tasks=gates, ladder=_ladder(), rollouts=rollouts, tokens=tokens,
        audit=_audit(random.Random(5)),
        metrics=_training_metrics(rng) + _rl_metrics(rng), recipe=_recipe(),
        evaluations=[_evaluation("sft", 0.0, rng), _evaluation("rl", 0.17, rng)],
        recipe_digest="sha256:" + "4f" * 32, code_digest="sha256:" + "9a" * 32,
        versions={"python": "3.11.9", "torch": "2.13.0", "kfp": "2.17.3", "pydantic": "2.14.3"},
        machine={"cores": "2", "memory": "7.6 GiB", "accelerators": "none", "system": "Linux"},
        cache_reasons={"root/data/corpus": "hit: same component, inputs and code digest"},
        attempt_log={retried.path: [
            AttemptRecord(number=1, started_at=start, finished_at=start + (end - start) * 0.4,
                          error="worker lost", log="root/extend-2/extend/1/log.txt"),
            AttemptRecord(number=2, started_at=start + (end - start) * 0.5, finished_at=end,
                          log="root/extend-2/extend/2/log.txt")]},
    )  # fmt: skip


def cut_at(path: str, state: str, error: str | None) -> CollectedRun:
    """The same run as it looks when `path` has just reached `state`; nothing later has started."""
    run = example_run()
    index = next(i for i, t in enumerate(run.tasks) if t.path == path)
    for position, task in enumerate(run.tasks):
        if position == index:
            task.state, task.error = state, error
            if state == "RUNNING":
                task.finished_at = None
        elif position > index:
            task.state = "PENDING"
            task.started_at = task.finished_at = task.cpu_seconds = task.peak_memory_bytes = None
            task.attempts, task.artifacts = 0, {}
    done = {t.path for t in run.tasks[: index + 1]}
    kept = [i for i, p in enumerate(run.verdict_tasks) if p in done]
    run.verdicts = [run.verdicts[i] for i in kept]
    run.verdict_tasks = [run.verdict_tasks[i] for i in kept]
    run.metrics = [m for m in run.metrics if m.task in done]
    run.rollouts = {k: v for k, v in run.rollouts.items() if f"root/{k}/cispo" in done}
    run.audit = {k: v for k, v in run.audit.items() if k in run.rollouts}
    run.evaluations, run.ladder = run.evaluations[:1], None
    run.state, run.error, run.finished_at = state, error, run.tasks[index].finished_at
    return run


def blocked_run() -> CollectedRun:
    """A run that gate E3 blocked."""
    error = "QualityGateBlocked: E3 sft: think_tags observed 0.91, allowed >= 0.995"
    run = cut_at("root/sft/gate-e3", "FAILED", error)
    verdict = run.verdicts[-1]
    verdict.passed = False
    check = verdict.checks[1]
    check.passed, check.observed = False, 0.9123456789
    check.offenders = [f"chat-{i:04d}" for i in range(12)]
    return run
