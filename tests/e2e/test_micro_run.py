"""One whole run of the micro recipe through the command: what it prints and what it leaves."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from micro_run import MICRO, longstride

from longstride.recipe.loading import load_recipe
from longstride.store.files import read_json, read_jsonl
from longstride.tokens.chat import render_prompt
from longstride.tokens.tokenizer import Tokenizer
from longstride.training.checkpoints import open_checkpoint
from schemas.ladder import LadderState
from schemas.rows import EvalResult, Message, RLPrompt, Rollout
from schemas.verdict import Verdict

RECIPE = load_recipe(MICRO, (), [MICRO.parents[2] / "pipelines" / "recipes"])


def verdicts(run):
    return {
        name: read_json(path / "verdict.json", Verdict)
        for name, path in run.folder.artifacts()
        if name.endswith("/verdict")
    }


def rollouts_of(run, number):
    task = "rl-round" if number == 1 else f"rl-round-{number}"
    return list(
        read_jsonl(
            run.folder.output(f"{task}/policy-round", "rollouts") / "rollouts.jsonl", Rollout
        )
    )


def test_the_run_succeeds_and_so_does_every_task(micro):
    assert micro.code == 0, micro.output + micro.errors
    assert {task.state for task in micro.folder.tasks().values()} == {"SUCCEEDED"}
    assert not any(task.cache_hit for task in micro.folder.tasks().values())


def test_nothing_is_said_on_standard_error(micro):
    assert micro.errors == ""


def test_there_is_a_plain_line_for_every_task(micro):
    lines = re.findall(r"^ *\d+:\d\d ✓ +\d+/(\d+)  (.+?)  +\d+\.\d s$", micro.output, re.M)
    tasks = micro.folder.tasks()
    assert len(lines) == len(tasks) == len({name for _, name in lines})
    assert {total for total, _ in lines} == {str(len(tasks))}
    assert "\x1b" not in micro.output and "━" not in micro.output


def test_the_summary_ends_with_numbers_and_paths(micro):
    summary = micro.output.partition("SUCCEEDED after")[2]
    assert "benchmark  sft" in summary and "benchmark  rl" in summary and "gain" in summary
    assert f"run        {micro.folder.path}" in summary
    assert f"report     {micro.folder.path / 'report.html'}" in summary


def test_the_report_stands_alone_and_shows_the_benchmark(micro):
    page = (micro.folder.path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:|//|file:)|@import|url\(""", page)
    for label in ("sft", "rl"):
        path = micro.folder.output(
            "run-benchmark" if label == "sft" else "run-benchmark-2", "evaluation"
        )
        average = read_json(path / "result.json", EvalResult).average
        assert f"[{100 * average.low:.1f}, {100 * average.high:.1f}]" in page.replace("\u2212", "-")


def test_every_gate_wrote_a_verdict_and_passed(micro):
    edges = sorted(verdict.edge for verdict in verdicts(micro).values())
    stages = 1 + len(RECIPE.extension)
    rounds = RECIPE.rl.rounds
    expected = ["E1", "E3", "E4", "E8", *["E2"] * stages, *["E5"] * rounds]
    assert edges == sorted([*expected, *["E7"] * (stages + 1 + rounds)])
    for name, verdict in verdicts(micro).items():
        assert verdict.passed and verdict.checks and verdict.override is None, name


def test_the_ladder_remembers_a_decision_for_every_round(micro):
    task = f"rl-round-{RECIPE.rl.rounds}/expansion-gate"
    state = read_json(micro.folder.output(task, "next_ladder") / "ladder_state.json", LadderState)
    assert len(state.history) == RECIPE.rl.rounds
    assert state.history[0].window == RECIPE.ladder.windows[0]
    assert all(entry.reasons for entry in state.history)


def test_every_artifact_is_whole(micro):
    manifests = micro.folder.manifests()
    kinds = {manifest.kind for manifest in manifests.values()}
    assert {"recipe", "documents", "tokenizer", "packed", "chat", "prompts", "checkpoint",
            "rollouts", "ladder_state", "verdict", "eval"} <= kinds  # fmt: skip
    assert all(manifest.files for manifest in manifests.values())


def test_every_parent_is_an_artifact_of_the_run_or_a_file_of_one(micro):
    """Packed rows name the file of the tokenizer; everything else names whole artifacts."""
    manifests = micro.folder.manifests()
    digests = set(micro.folder.digests().values())
    (tokenizer,) = [m for m in manifests.values() if m.kind == "tokenizer"]
    files = {f"sha256:{tokenizer.files['tokenizer.json'].sha256}"}
    for name, manifest in manifests.items():
        assert set(manifest.parents.values()) <= digests | files, name
    first = ("recipe", "sources", "documents", "chat", "prompts")  # from the recipe, from outside
    orphans = {n for n, m in manifests.items() if not m.parents and m.kind not in first}
    assert orphans == {"initialise-model/checkpoint", "start-ladder/ladder"}


def test_checkpoints_form_one_chain_from_the_first_weights_to_the_last(micro):
    digests = micro.folder.digests()
    chain = [name for name in micro.folder.manifests() if name.endswith("/checkpoint")]
    parent = {
        digests[name]: micro.folder.manifests()[name].parents.get("checkpoint") for name in chain
    }
    last = digests[f"rl-round-{RECIPE.rl.rounds}/policy-round/checkpoint"]
    length = 0
    while last is not None:
        last, length = parent.pop(last), length + 1
    assert length == len(chain) == 1 + 1 + len(RECIPE.extension) + 1 + RECIPE.rl.rounds


def test_every_training_task_left_finite_metrics(micro):
    metrics = micro.folder.metrics()
    language = [name for name in metrics if "train-language" in name]
    rounds = [name for name in metrics if "policy-round" in name]
    assert len(language) == 1 + len(RECIPE.extension) + 1
    assert len(rounds) == RECIPE.rl.rounds
    for name in language:
        assert {"train/loss", "validation/loss"} <= {row[1] for row in metrics[name]}
    for name in rounds:
        assert {"rl/reward/mean", "rl/entropy"} <= {row[1] for row in metrics[name]}
    assert all(math.isfinite(row[2]) for rows in metrics.values() for row in rows)


@pytest.mark.parametrize("number", range(1, RECIPE.rl.rounds + 1))
def test_rollouts_hold_the_sampled_ids_and_their_log_probabilities(micro, number):
    tokenizer = Tokenizer.load(micro.folder.output("train-tokenizer", "tokenizer"))
    prompts = read_jsonl(
        micro.folder.output("curate-prompts", "prompts") / "prompts.jsonl", RLPrompt
    )
    texts = {prompt.id: prompt.prompt for prompt in prompts}
    rollouts = rollouts_of(micro, number)
    assert len(rollouts) >= RECIPE.rl.groups_per_batch * RECIPE.rl.group_size
    for rollout in rollouts:
        assert 0 < len(rollout.tokens) <= rollout.window
        assert all(value is not None and value <= 1e-6 for value in rollout.logprobs)
        turn = [Message(role="user", content=texts[rollout.prompt_id])]
        assert rollout.prompt_tokens == render_prompt(tokenizer, turn)
        assert rollout.text == tokenizer.decode_sample(rollout.tokens)


def test_recorded_log_probabilities_are_those_of_the_policy_that_sampled(micro):
    """The first batch of round 1 was drawn from the SFT weights; ask the model itself, in full."""
    model = open_checkpoint(micro.folder.output("sft-stage/train-language", "checkpoint")).model
    for rollout in [r for r in rollouts_of(micro, 1) if r.batch == 0][:6]:
        row = torch.tensor([rollout.prompt_tokens + rollout.tokens])
        with torch.no_grad():
            hidden = model(row, torch.zeros_like(row), torch.arange(row.shape[1])[None]).hidden_BTD
        logits = hidden[0].float() @ model.head.weight.float().T
        start = len(rollout.prompt_tokens) - 1
        logp = (logits[start:-1] / RECIPE.rollout.temperature).log_softmax(-1)
        own = logp.gather(1, torch.tensor(rollout.tokens)[:, None])[:, 0]
        assert own.tolist() == pytest.approx(rollout.logprobs, abs=2e-4)


LIGHT_TASKS = """
import sys
from pathlib import Path
from longstride.recipe.prerequisites import check_and_publish
from longstride.recipe.resolved import open_recipe
from longstride.report.exit_handler import report_from_exit_handler
from longstride.training.ladder import expand_ladder, start_ladder
recipe, rollouts, run, out = map(Path, sys.argv[1:])
recipe = open_recipe(recipe)
start_ladder(recipe, out / "first")
expand_ladder(recipe, 1, rollouts, out / "first", out / "next")
report_from_exit_handler(str(run), state="SUCCEEDED", error="", out=out / "page")
heavy = {"torch", "great_expectations", "pandas", "transformers", "reasoning_gym", "kfp"}
print(sorted(heavy & set(sys.modules)))
"""


def test_what_light_tasks_do_imports_nothing_heavy(micro, tmp_path):
    paths = (
        micro.folder.output("prerequisites", "resolved_recipe"),
        micro.folder.output("rl-round/policy-round", "rollouts"),
        micro.folder.path,
        tmp_path,
    )
    done = subprocess.run(
        [sys.executable, "-c", LIGHT_TASKS, *map(str, paths)], capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_light_tasks_stay_far_below_the_memory_of_those_with_torch(micro):
    tasks = micro.folder.tasks()
    peak = {name: task.attempts[-1].peak_rss_bytes for name, task in tasks.items()}
    light = ["prerequisites", "start-ladder", "rl-round/expansion-gate", "write-report"]
    assert 3 * max(peak[name] for name in light) < peak["sft-stage/train-language"]


def test_a_second_run_judges_again_and_takes_everything_else_from_the_cache(micro):
    done = longstride("run", MICRO, "--runs", micro.runs, "--run-id", "again")
    assert done.returncode == 0, done.stdout + done.stderr
    again = type(micro.folder)(micro.runs / "again")
    ran = {name for name, task in again.tasks().items() if not task.cache_hit}
    gates = {name for name in again.tasks() if "quality-gate" in name}
    assert ran == {"prerequisites", "write-report"} | gates
    assert again.digests() == micro.folder.digests()


def test_another_seed_gives_other_first_weights_and_another_corpus(micro, tmp_path):
    from longstride.data.corpus import build_corpus
    from longstride.store.artifacts import digest_of_artifact
    from longstride.training.language import initialise

    digests = micro.folder.digests()
    for seed, same in ((RECIPE.seed, True), (RECIPE.seed + 1, False)):
        recipe = RECIPE.model_copy(update={"seed": seed})
        weights = digest_of_artifact(initialise(recipe, tmp_path / f"{seed}-weights"))
        corpus = digest_of_artifact(build_corpus(recipe, tmp_path / f"{seed}-corpus"))
        assert (weights == digests["initialise-model/checkpoint"]) is same
        assert (corpus == digests["build-corpus/corpus"]) is same


def test_the_run_record_names_the_recipe_and_the_code(micro):
    record = json.loads((micro.folder.path / "run.json").read_text())
    assert record["pipeline_name"] == "micro"
    assert Path(micro.folder.path / "ir.yaml").stat().st_size > 0
    assert record["parameters"]["code_digest"].startswith("sha256:")
