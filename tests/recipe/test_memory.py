from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from longstride.model.hybrid import HybridModel
from longstride.model.kernels.library import library
from longstride.model.logprobs import token_logprobs
from longstride.recipe.activations import Arithmetic, Batch, training_peak
from longstride.recipe.loading import load_recipe
from longstride.recipe.memory import (
    Setup,
    memory_bytes,
    memory_plan,
    model_state,
    sampling_bytes,
    snapshot_bytes,
)
from longstride.recipe.sizes import parameter_counts
from longstride.rollout.native import NativeGenerator
from longstride.rollout.protocol import SamplingSettings
from longstride.training.arithmetic import checkpoint_activations
from schemas.engine import DeepSpeedEngine, TorchEngine
from schemas.model import ModelConfig

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"
HYBRID = ModelConfig(hidden_size=64, head_dim=16, rotary_dim=8, expert_hidden_size=64)
DENSE = ModelConfig(
    hidden_size=64, block_types=["softmax"] * 4, head_dim=16, rotary_dim=16, num_experts=1,
    experts_per_token=1, expert_hidden_size=160, residual="prenorm", qkv_bias=True,
)  # fmt: skip


def plan(*overrides, recipe="tiny"):
    return {e.task: e for e in memory_plan(load_recipe(recipe, overrides, [RECIPES]))}


def largest_total(work):
    """Most bytes that torch had allocated at a time during `work`, above the start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    total = most = 0
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        most = max(most, total)
    return most


@pytest.mark.parametrize("config", [HYBRID, DENSE], ids=["hybrid", "dense"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_peak_of_a_pass_is_estimated_within_20_percent(config, checkpointed):
    batch = Batch(4, 256)
    model = HybridModel(config)
    model.initialise(0)
    if checkpointed:
        checkpoint_activations(model)
    tokens = torch.randint(8, config.vocab_size, (batch.rows, batch.tokens))

    def work():
        hidden = model(tokens).hidden_BTD
        logp, _ = token_logprobs(model, hidden[:, :-1], tokens[:, 1:])
        del hidden
        (-logp.mean()).backward()
        model.zero_grad()

    work()
    how = Arithmetic(fused=library() is not None)
    gradients = 4 * parameter_counts(config)[0]
    estimate = training_peak(config, batch, how, checkpointed)
    measured = largest_total(work)
    assert measured == pytest.approx(estimate, rel=0.20, abs=gradients)


@pytest.mark.parametrize("config", [HYBRID, DENSE], ids=["hybrid", "dense"])
def test_the_peak_of_sampling_is_estimated_within_25_percent(config):
    model = HybridModel(config)
    model.initialise(0)
    prompts = torch.randint(8, config.vocab_size, (32, 96)).tolist()
    settings = SamplingSettings(max_new_tokens=70)

    def work():
        NativeGenerator(model, 64).generate(prompts, 4, settings, 0)

    NativeGenerator(model, 2).generate(prompts[:1], 2, SamplingSettings(max_new_tokens=2), 0)
    assert largest_total(work) == pytest.approx(sampling_bytes(config, 64, 4, 70), rel=0.25)


@given(stage=st.integers(0, 3), ranks=st.sampled_from([1, 2, 8, 64]))
def test_zero_divides_what_it_shards_and_nothing_else(stage, ranks):
    total = parameter_counts(HYBRID)[0]
    engine = DeepSpeedEngine(ranks=ranks, zero_stage=stage)
    device, host = model_state(HYBRID, Setup(Arithmetic(), engine))
    assert host == {}
    assert device["moments"] == 8 * total // (ranks if stage >= 1 else 1)
    assert device["gradients"] == 4 * total // (ranks if stage >= 2 else 1)
    copy = 4 * total // ranks if stage else 0
    if stage < 3:
        assert device["weights"] == 4 * total + copy
    else:
        # Beside its shard a rank holds the largest layer while that runs.
        assert device["weights"] < 4 * total // ranks + copy + 4 * total


def test_offloaded_moments_lie_on_the_host_and_bf16_keeps_cast_weights():
    total = parameter_counts(HYBRID)[0]
    engine = DeepSpeedEngine(ranks=2, zero_stage=1, offload_optimizer=True, dtype="bfloat16")
    device, host = model_state(HYBRID, Setup(Arithmetic(2, fused=False), engine))
    assert host == {"moments": 4 * total} and "moments" not in device
    head = HYBRID.vocab_size * HYBRID.hidden_size
    assert device["cast weights"] == 2 * (total - head)


def test_a_snapshot_holds_weights_and_moments():
    total = parameter_counts(HYBRID)[0]
    assert snapshot_bytes(HYBRID, Setup(Arithmetic(), TorchEngine())) == 12 * total


def test_every_task_of_the_tiny_recipe_fits_and_is_named_once():
    tasks = memory_plan(load_recipe("tiny", [], [RECIPES]))
    assert [e.task for e in tasks] == [
        "pretrain", "extend-1", "extend-2", "extend-3", "extend-4", "sft", "rl round", "benchmark"
    ]  # fmt: skip
    assert [problem for e in tasks for problem in e.problems()] == []


def test_a_task_above_its_limit_is_a_problem_that_names_the_largest_part():
    long = ("extension.3.window=65536", "extension.3.tokens=5000000")
    estimate = plan(*long, "resources.training.memory=2Gi")["extend-4"]
    (problem,) = estimate.problems()
    assert problem.startswith("extend-4 needs about ")
    assert "above its limit memory=2Gi; the largest part is activations" in problem


def test_recomputing_activations_and_smaller_microbatches_lower_the_estimate():
    full = plan("extension.3.window=4096")["extend-4"].host["activations"]
    less = plan("extension.3.window=4096", "engine.activation_checkpointing=true")["extend-4"]
    assert less.host["activations"] < 0.5 * full
    whole = plan()["pretrain"].host["activations"]
    half = plan("engine.microbatch_tokens=1024")["pretrain"].host["activations"]
    assert half == pytest.approx(whole / 2, rel=0.05)


def test_what_lies_on_accelerators_is_checked_against_their_memory():
    gpu = "resources.training={cpu: 2, memory: 3Gi, gpus: 1, retries: 1, gpu_memory: 100Mi}"
    estimate = plan(gpu)["pretrain"]
    assert {"activations", "weights"} <= set(estimate.device)
    assert not {"activations", "weights"} & set(estimate.host)
    (problem,) = estimate.problems()
    assert "gpu_memory=100Mi; the largest part is activations" in problem


def test_decoding_memory_of_lightning_layers_does_not_grow_with_length():
    lightning = ModelConfig(block_types=["lightning"] * 4)
    assert sampling_bytes(lightning, 8, 1, 100) == sampling_bytes(lightning, 8, 1, 10_000)


@pytest.mark.parametrize(
    ("text", "size"), [("512Mi", 2**29), ("3Gi", 3 * 2**30), ("1.5Ti", 1.5 * 2**40)]
)
def test_quantities_are_read_as_kubernetes_reads_them(text, size):
    assert memory_bytes(text) == size
