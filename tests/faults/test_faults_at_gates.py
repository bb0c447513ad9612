"""A gate refuses faults in what the run really made, and names tensor, row and check."""

import pytest
from faulty_artifacts import copy, edit_rows, poison, truncate
from micro_run import MICRO

from longstride.errors import QualityGateBlocked
from longstride.quality.gate import run_gate
from longstride.recipe.loading import load_recipe
from longstride.store.files import read_json
from schemas.verdict import Verdict

RECIPE = load_recipe(MICRO, (), [MICRO.parents[2] / "pipelines" / "recipes"])

# Edge: stage, the task and output that it guards, and what that is measured against.
GUARDED = {
    "E1": ("corpus", ("build-corpus", "corpus"), ("train-tokenizer", "tokenizer")),
    "E2": ("pretrain", ("language-stage/pack-documents", "packed"),
           ("train-tokenizer", "tokenizer")),
    "E4": ("rl-prompts", ("curate-prompts", "prompts"),
           ("sft-stage/build-chat-examples", "examples")),
    "E5": ("rl-1", ("rl-round/policy-round", "rollouts"), None),
    "E7": ("sft", ("sft-stage/train-language", "checkpoint"),
           ("language-stage-3/train-language", "checkpoint")),
    "E8": ("benchmark", ("run-benchmark-2", "evaluation"), ("run-benchmark", "evaluation")),
}  # fmt: skip


def rows_of(name, change):
    return lambda path: edit_rows(path / name, change)


def lose_log_probabilities(rows):
    rows[5]["logprobs"][0] = None


def write_nan(path):
    """As Python's json writes it: no valid JSON, and read by nobody else."""
    edit_rows(path / "rollouts.jsonl", lambda rows: rows[5]["logprobs"].__setitem__(0, 1e999 * 0))


def lose_samples(rows):
    del rows[3]


def wrong_answer(rows):
    rows[0]["answer"] = "one hundred"


FAULTS = {
    "an empty corpus": ("E1", rows_of("documents.jsonl", list.clear), r"documents\.jsonl"),
    "a document of another schema": (
        "E1", rows_of("documents.jsonl", lambda rows: rows[7].pop("domain")),
        r"documents\.jsonl, line 8 .*domain",
    ),
    "cut rows": ("E2", lambda p: truncate(p / "packed.safetensors"), r"packed\.safetensors has"),
    "a reference answer that does not verify": (
        "E4", rows_of("prompts.jsonl", wrong_answer), r"answer_verifies .*\(rows ",
    ),
    "rollouts that lost a log-probability": (
        "E5", rows_of("rollouts.jsonl", lose_log_probabilities), r"logprobs_finite .*\(rows ",
    ),
    "rollouts with NaN in the file": ("E5", write_nan, r"rollouts\.jsonl, line 6 .*logprobs"),
    "weights that are no numbers": (
        "E7", lambda p: poison(p, "head.weight", float("inf")), r"tensors_finite .*head\.weight",
    ),
    "a cut checkpoint": ("E7", lambda p: truncate(p / "model.safetensors"),
                         r"model\.safetensors has \d+ bytes"),
    "an evaluation that lost a sample": (
        "E8", rows_of("samples.jsonl", lose_samples), r"samples_complete is 0\.9875",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_gate_blocks_and_names_the_culprit(name, micro, tmp_path):
    edge, ruin, told = FAULTS[name]
    stage, guarded, against = GUARDED[edge]
    subject = copy(micro.folder.output(*guarded), tmp_path / "subject")
    reference = micro.folder.output(*against) if against else None
    ruin(subject)
    with pytest.raises(QualityGateBlocked, match=told):
        run_gate(edge, stage, RECIPE, subject, reference, tmp_path / "verdict")
    verdict = read_json(tmp_path / "verdict" / "verdict.json", Verdict)
    assert not verdict.passed and verdict.blocked_by
    assert (tmp_path / "verdict" / "report.html").exists()
