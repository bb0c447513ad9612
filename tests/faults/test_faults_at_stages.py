"""Every step refuses a corrupt input by name, before it computes anything and leaves no artifact.

The gates in front of the steps have tests of their own; these are the steps without them.
"""

import json

import pytest
from faulty_artifacts import copy, edit_rows, flip_a_byte, poison, republish, truncate
from micro_run import MICRO

from longstride.data.stage_rows import pack_examples, pack_for_stage
from longstride.data.tokenizer_training import train_on_corpus
from longstride.errors import CheckpointError, DataError, LongstrideError
from longstride.recipe.loading import load_recipe
from longstride.recipe.resolved import open_recipe
from longstride.training.benchmarking import benchmark_checkpoint
from longstride.training.curation import curate_with_policy
from longstride.training.ladder import expand_ladder
from longstride.training.language import train_stage
from longstride.training.policy import RoundPaths, run_round

RECIPE = load_recipe(MICRO, (), [MICRO.parents[2] / "pipelines" / "recipes"])
NAN = r"non-finite|not finite|NaN"

# What each step reads: name of the input, task and output that it comes from.
INPUTS = {
    "recipe": ("prerequisites", "resolved_recipe"),
    "corpus": ("build-corpus", "corpus"),
    "tokenizer": ("train-tokenizer", "tokenizer"),
    "packed": ("language-stage/pack-documents", "packed"),
    "start": ("initialise-model", "checkpoint"),
    "examples": ("sft-stage/build-chat-examples", "examples"),
    "sft": ("sft-stage/train-language", "checkpoint"),
    "prompts": ("curate-prompts", "prompts"),
    "ladder": ("start-ladder", "ladder"),
    "rollouts": ("rl-round/policy-round", "rollouts"),
}


def pretrain(at, out):
    train_stage(RECIPE, "pretrain", at["packed"], at["start"], out, out.with_name("metrics"))


def policy_round(at, out):
    run_round(
        RECIPE, 1,
        RoundPaths(at["prompts"], at["tokenizer"], at["sft"], at["ladder"], out,
                   out.with_name("rollouts-out"), out.with_name("metrics")),
    )  # fmt: skip


STEPS = {
    "tokenizer": lambda at, out: train_on_corpus(RECIPE, at["corpus"], out),
    "pack": lambda at, out: pack_for_stage(
        RECIPE, "pretrain", at["corpus"], at["tokenizer"], out
    ),
    "pretrain": pretrain,
    "pack_chat": lambda at, out: pack_examples(RECIPE, at["examples"], at["tokenizer"], out),
    "curate": lambda at, out: curate_with_policy(
        RECIPE, at["examples"], at["tokenizer"], at["sft"], out
    ),
    "round": policy_round,
    "expand": lambda at, out: expand_ladder(RECIPE, 1, at["rollouts"], at["ladder"], out),
    "benchmark": lambda at, out: benchmark_checkpoint(RECIPE, "sft", at["tokenizer"], at["sft"],
                                                      out),
    "open_recipe": lambda at, out: open_recipe(at["recipe"]),
}  # fmt: skip


def wrong_schema(path):
    edit_rows(path, lambda rows: rows[2].update(text=7, prompt=7, messages="hello"))


def broken_utf8(path):
    lines = path.read_bytes().split(b"\n")
    lines[3] = lines[3].replace(b'":"', b'":"\xff\xfe', 1)
    assert b"\xff" in lines[3]
    path.write_bytes(b"\n".join(lines))
    republish(path.parent)


def no_tensor(path):
    path.write_bytes(b"no tensors here")
    republish(path.parent)


def edited_manifest(path):
    manifest = json.loads(path.read_text())
    name = next(iter(manifest["files"]))
    manifest["files"][name]["sha256"] = "0" * 64
    path.write_text(json.dumps(manifest))


def poison_head(path):
    poison(path.parent, "head.weight")


def huge_token(path):
    import numpy as np
    from safetensors.numpy import load_file, save_file

    tensors = {name: np.array(array) for name, array in load_file(path).items()}
    tensors["tokens_NT"][0, 0] = 30_000
    save_file(tensors, path)
    republish(path.parent)


CASES = {
    "a cut corpus": ("tokenizer", "corpus", "documents.jsonl", truncate, r"documents\.jsonl .*tr"),
    "a changed corpus": ("pack", "corpus", "documents.jsonl", flip_a_byte, r"documents\.jsonl "
                         r"does not match its sha256"),
    "a corpus row of another schema": ("pack", "corpus", "documents.jsonl", wrong_schema,
                                       r"documents\.jsonl, line 3 .*text"),
    "a corpus row that is no UTF-8": ("tokenizer", "corpus", "documents.jsonl", broken_utf8,
                                      r"documents\.jsonl, line 4"),
    "a missing corpus": ("pack", "corpus", "documents.jsonl", lambda p: p.unlink(),
                         r"documents\.jsonl is missing"),
    "a changed tokenizer": ("pack", "tokenizer", "tokenizer.json", lambda p: p.write_text("{}"),
                            r"tokenizer\.json"),
    "cut rows": ("pretrain", "packed", "packed.safetensors", truncate,
                 r"packed\.safetensors has \d+ bytes, .*truncated"),
    "rows that are no tensors": ("pretrain", "packed", "packed.safetensors", no_tensor,
                                 r"packed\.safetensors cannot be read"),
    "rows with a token of another tokenizer": ("pretrain", "packed", "packed.safetensors",
                                               huge_token, "token id 30000 .*512 entries"),
    "an edited manifest of rows": ("pretrain", "packed", "manifest.json", edited_manifest,
                                   r"does not match its sha256 in manifest\.json"),
    "a cut parent": ("pretrain", "start", "model.safetensors", truncate,
                     r"model\.safetensors has \d+ bytes"),
    "a parent with a NaN": ("pretrain", "start", "model.safetensors", poison_head,
                            rf"model\.safetensors.*head\.weight.*({NAN})|({NAN}).*head\.weight"),
    "an edited manifest of a parent": ("pretrain", "start", "checkpoint.json", edited_manifest,
                                       r"sha256 in checkpoint\.json"),
    "a checkpoint without a manifest": ("pretrain", "start", "checkpoint.json",
                                        lambda p: p.unlink(), r"has no checkpoint\.json"),
    "an example of another schema": ("pack_chat", "examples", "examples.jsonl", wrong_schema,
                                     r"examples\.jsonl, line 3 .*messages"),
    "a policy with a NaN": ("curate", "sft", "model.safetensors", poison_head,
                            rf"head\.weight.*({NAN})|({NAN}).*head\.weight"),
    "a prompt of another schema": ("round", "prompts", "prompts.jsonl", wrong_schema,
                                   r"prompts\.jsonl, line 3 .*prompt"),
    "cut weights before a round": ("round", "sft", "model.safetensors", truncate,
                                   r"model\.safetensors has \d+ bytes"),
    "a changed ladder": ("round", "ladder", "ladder_state.json",
                         lambda p: p.write_text(p.read_text().replace("24", "80")),
                         r"ladder_state\.json does not match"),
    "cut rollouts": ("expand", "rollouts", "rollouts.jsonl", truncate, r"rollouts\.jsonl has"),
    "a summary that is none": ("expand", "rollouts", "summary.json",
                               lambda p: (p.write_text("{}"), republish(p.parent)),
                               r"summary\.json is not a summary of a round .*passed_through"),
    "cut weights before the benchmark": ("benchmark", "sft", "model.safetensors", truncate,
                                         r"model\.safetensors has \d+ bytes"),
    "a changed recipe": ("open_recipe", "recipe", "recipe.json", flip_a_byte, r"recipe\.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_step_refuses_by_name(name, micro, tmp_path):
    step, which, file, ruin, told = CASES[name]
    at = {key: micro.folder.output(*place) for key, place in INPUTS.items()}
    at[which] = copy(at[which], tmp_path / which)
    ruin(at[which] / file)
    with pytest.raises(LongstrideError, match=told) as raised:
        STEPS[step](at, tmp_path / "out")
    assert isinstance(raised.value, CheckpointError if "model" in file else DataError)
    assert str(tmp_path / which) in str(raised.value)
    left = {path.name for path in tmp_path.rglob("*.json") if which not in path.parts}
    assert not left & {"manifest.json", "checkpoint.json"}
