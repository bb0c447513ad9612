"""Builders of small honest artifacts, and a judge of suites that owes nothing to the real one."""

import json
import math
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from longstride.evals.intervals import mean_interval
from longstride.quality.frame import Measured, MeasuredRows, RowWriter
from longstride.quality.gate import INPUTS, _open, measure_edge
from longstride.quality.subject import Subject
from longstride.store.artifacts import publish
from longstride.store.files import read_jsonl, write_json, write_jsonl
from schemas.recipe import Recipe
from schemas.rows import EvalResult, EvalSample, Rollout

GROUP, WINDOW = 4, 40


def make_recipe(**changes) -> Recipe:
    sums = [{"parameters": {"min_terms": n, "max_terms": n, "min_digits": 1, "max_digits": 1}}
            for n in (3, 4)]  # fmt: skip
    values = {
        "name": "small",
        "seed": 3,
        "model": {
            "vocab_size": 400, "hidden_size": 16, "block_types": ["lightning", "softmax"],
            "num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "rotary_dim": 4,
            "num_experts": 2, "experts_per_token": 1, "expert_hidden_size": 8,
        },
        "tokenizer": {"vocab_size": 400},
        "data": {
            "sources": [
                {"kind": "standard_library", "name": "docs", "domain": "book",
                 "part": "docstrings"},
                {"kind": "standard_library", "name": "code", "domain": "code", "part": "code"},
                {"kind": "package_documentation", "name": "tools", "domain": "web",
                 "packages": ["pydantic", "pip", "rich"]},
                {"kind": "reasoning_gym", "name": "sums", "domain": "reasoning",
                 "documents": 120},
            ],
            "mixture": {"book": 0.4, "web": 0.2, "code": 0.25, "reasoning": 0.15},
            "characters": 60_000,
            "document_characters": 1_500,
        },
        "tasks": [{"name": "chain_sum", "levels": sums}],
        "pretrain": {"window": 32, "tokens": 6_000},
        "extension": [
            {"window": 64, "rope_base": 20_000, "tokens": 6_000, "learning_rate": 1e-3},
            {"window": 256, "rope_base": 40_000, "tokens": 6_000, "learning_rate": 1e-3},
        ],
        "sft": {"examples": 120, "window": 128},
        "rl": {"groups_per_batch": 4, "group_size": GROUP,
               "curation": {"candidates": 20, "samples": 4}},
        "benchmark": {"problems_per_level": 10, "samples_per_problem": 2},
        # A few thousand tokens do not show the mixture.
        "quality": {"thresholds": {"E2/mixture_kl": 1.5}},
    }  # fmt: skip
    return Recipe.model_validate({**values, **changes})


def rewrite(directory: Path, out: Path, name: str, model: type, change, kind: str) -> Path:
    """A copy of an artifact whose rows went through `change`, published again."""
    out.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if path.name not in (name, "manifest.json"):
            (out / path.name).write_bytes(path.read_bytes())
    write_jsonl(out / name, change(list(read_jsonl(directory / name, model))))
    before = json.loads((directory / "manifest.json").read_text())
    counts = {k: v for k, v in before["counts"].items() if k != "documents"}
    publish(out, kind, before["stage"], parents=before["parents"], counts=counts)
    return out


def make_rollouts() -> list[Rollout]:
    """Two batches of three groups; half of each group is right, sampler and trainer agree."""
    rng = random.Random(5)
    rollouts = []
    for batch in range(2):
        for group in range(3):
            for sample in range(GROUP):
                right = sample % 2 == 0
                length = rng.randint(20, 32)
                logprobs = [math.log(rng.uniform(0.2, 0.95)) for _ in range(length)]
                rollouts.append(
                    Rollout(
                        prompt_id=f"p{batch}{group}",
                        group=group,
                        sample=sample,
                        batch=batch,
                        prompt_tokens=[3, 20, 21, 5, 4],
                        tokens=[rng.randint(8, 300) for _ in range(length)],
                        logprobs=logprobs,
                        trainer_logprobs=[v + rng.uniform(-1e-3, 1e-3) for v in logprobs],
                        importance_weights=[rng.uniform(0.5, 2.0) for _ in range(length)],
                        text=f"<think>{rng.random()} {rng.random()}</think>{sample}",
                        finish_reason="stop",
                        reward=1.0 if right else 0.0,
                        rewards={"correct": 1.0 if right else 0.0},
                        correct=right,
                        advantage=1.0 if right else -1.0,
                        window=WINDOW,
                    )
                )
    return rollouts


def write_rollouts(out: Path, rollouts: list[Rollout], **summary) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    write_jsonl(out / "rollouts.jsonl", rollouts)
    write_json(out / "summary.json", {"passed_through": False, "is_weight_cap": 5.0, **summary})
    publish(out, "rollouts", "rl-1", counts={"rollouts": len(rollouts)})
    return out


def make_samples(right: float) -> list[EvalSample]:
    """Twenty problems, two samples each; the given share of samples is correct."""
    return [
        EvalSample(
            prompt_id=f"chain_sum-{problem}",
            family="chain_sum",
            level=0,
            sample=sample,
            correct=(2 * problem + sample) % 10 < round(10 * right),
            length=20 + problem % 5,
            finish_reason="stop",
        )
        for problem in range(20)
        for sample in range(2)
    ]


def make_result(samples: list[EvalSample], label: str, **changes) -> EvalResult:
    scores: dict[str, list[float]] = {}
    for sample in samples:
        if sample.correct is not None:
            scores.setdefault(sample.prompt_id, []).append(float(sample.correct))
    values = {
        "label": label,
        "checkpoint_digest": f"sha256:{label}",
        "samples_per_problem": 2,
        "temperature": 1.0,
        "top_p": 0.95,
        "window": 80,
        "prompt_set_digest": "sha256:problems",
        "verifier_version": "reasoning-gym 0",
        "average": mean_interval(scores),
        "by_family": {},
        "by_level": {},
        "length_p50": 22.0,
        "length_p99": 24.0,
        "truncated_share": 0.0,
        "unjudged_share": 0.0,
        "problem_means": {name: sum(s) / len(s) for name, s in scores.items()},
    }
    return EvalResult.model_validate({**values, **changes})


def write_eval(out: Path, samples: list[EvalSample], result: EvalResult) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    write_jsonl(out / "samples.jsonl", samples)
    write_json(out / "result.json", result)
    publish(out, "eval", f"benchmark-{result.label}")
    return out


def write_packed(out: Path, source: Path, change) -> Path:
    """A copy of packed rows whose arrays and records went through `change`."""
    from safetensors.numpy import load_file, save_file

    out.mkdir(parents=True, exist_ok=True)
    tensors = {k: np.array(v) for k, v in load_file(source / "packed.safetensors").items()}
    records = [json.loads(line) for line in (source / "rows.jsonl").read_text().splitlines()]
    manifest = json.loads((source / "manifest.json").read_text())
    tensors = change(tensors, records, manifest) or tensors
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, out / "packed.safetensors")
    (out / "rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    publish(out, "packed", manifest["stage"], parents=manifest["parents"])
    return out


@dataclass
class Parts:
    """Honest artifacts of one small run, by name."""

    recipe: Recipe
    root: Path
    paths: dict[str, Path] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]


def measured_rows(measured) -> list[dict]:
    return measured.rows.scan().collect().to_dicts()


def write_rows(path: Path, rows: list[dict], columns) -> MeasuredRows:
    with RowWriter(path, columns) as writer:
        for row in rows:
            writer.append(row)
        return writer.finish()


def measure(edge, stage, recipe, subject, reference=None, scratch=None) -> Measured:
    """Measure as the gate does."""
    inputs = INPUTS[edge]
    against = _open(reference, inputs.reference) if reference else None
    opened = _open(subject, inputs.subject)
    folder = Path(scratch or tempfile.mkdtemp(dir=subject.parent))
    return measure_edge(edge, Subject(stage, recipe, opened, against), folder)


def judge(suite, measured) -> dict[str, bool]:
    """Outcome of every check, worked out from the suite without Great Expectations."""
    outcome = {}
    frame = measured_rows(measured)
    for spec in suite.checks:
        if spec.level == "drift":
            continue
        rows = frame if spec.level == "rows" else [measured.summary]
        values = [row[spec.column] for row in rows if row[spec.column] is not None]
        if spec.expectation == "expect_column_values_to_be_unique":
            good = [values.count(value) == 1 for value in values]
        elif "limit" in spec.arguments:
            good = [0 <= value <= spec.arguments["limit"] for value in values]
        elif "value_set" in spec.arguments:
            good = [value in spec.arguments["value_set"] for value in values]
        else:
            low = spec.arguments.get("min_value", -math.inf)
            high = spec.arguments.get("max_value", math.inf)
            good = [low <= value <= high for value in values]
        least = 1.0 if spec.mostly is None else spec.mostly
        outcome[spec.name] = not good or sum(good) / len(good) >= least
    return outcome
