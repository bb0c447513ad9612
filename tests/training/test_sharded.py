"""DeepSpeed in real processes against plain torch: losses, norms, weights, moments, refusals."""

import pytest
from rank_processes import run_program

STAGES = range(4)
BOTH = ("agreement", "conversions")
TWO_ONLY = ("options", "bad_gradients", "tiny_gradients", "policy")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The facts of every rank by number of ranks; two ranks first, for one to convert theirs."""
    folder = tmp_path_factory.mktemp("ranks")
    two = run_program("engine_program.py", 2, folder, *BOTH, *TWO_ONLY)
    return {2: two, 1: run_program("engine_program.py", 1, folder, *BOTH)}


@pytest.fixture(scope="module")
def two(programs):
    """The facts of the first of two ranks."""
    return programs[2][0]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_losses_norms_and_weights_are_those_of_torch_over_20_steps(programs, count, stage):
    facts = programs[count][0]["agreement"]
    assert facts[f"zero-{stage}"] == pytest.approx(facts["torch"], rel=1e-5, abs=1e-6)
    assert facts[f"difference-{stage}"] < 1e-5
    losses = facts["torch"][:-1:2]
    assert len(losses) == 20 and losses[-1] < 0.8 * losses[0]


def test_all_ranks_report_the_same_numbers(programs):
    first, second = programs[2]
    assert first == second


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_offloading_and_activation_checkpointing_change_nothing(two, stage):
    facts = two["options"]
    assert facts[f"options-{stage}"] == pytest.approx(facts["torch"], rel=1e-5)


@pytest.mark.parametrize("stage", [0, 3])
def test_bf16_is_that_of_torch_and_not_fp32(two, stage):
    facts = two["options"]
    assert facts[f"bf16-{stage}"] == pytest.approx(facts["torch-bf16"], rel=1e-4)
    assert facts[f"bf16-{stage}"] != pytest.approx(facts["torch"], rel=1e-4)


@pytest.mark.parametrize("stage", [0, 3])
def test_under_bf16_head_and_router_compute_in_fp32_and_nothing_else_does(two, stage):
    types = two["options"][f"types-{stage}"]
    wide = {name for name, dtype in types.items() if dtype == "torch.float32"}
    assert wide == {"head", "router"}
    assert {types[n] for n in types.keys() - wide} == {"torch.bfloat16"}


def test_the_sampler_has_the_types_that_train(two):
    types = two["options"]["sampler-3"]
    wide = {name for name, dtype in types.items() if dtype == "torch.float32"}
    assert wide == {name for name in types if "head" in name or "router" in name}


@pytest.mark.parametrize("stage", STAGES)
def test_a_bad_gradient_on_one_rank_is_skipped_counted_and_named_on_all(programs, stage):
    for facts in programs[2]:
        norms, unchanged, skipped, message = facts["bad_gradients"][f"bad-{stage}"]
        assert (norms, unchanged, skipped) == ([0.0, 0.0], True, 3)
        assert "gradient of 'embed.weight' was not finite in 3 steps in a row" in message


@pytest.mark.parametrize("stage", STAGES)
def test_the_eps_of_the_recipe_reaches_the_optimizer_that_runs(two, stage):
    small, large = (two["tiny_gradients"][f"moved-{stage}-{eps}"] for eps in (1e-15, 1e-8))
    assert small == pytest.approx([1e-3, 1e-3], rel=2e-3)
    assert max(large) < 1e-6


@pytest.mark.parametrize("target", ["zero-1", "zero-2", "zero-3", "torch"])
@pytest.mark.parametrize(("source", "count"), [("torch", 2), ("2-ranks", 2), ("2-ranks", 1)])
def test_state_moves_between_engines_and_numbers_of_ranks(programs, source, count, target):
    facts = programs[count][0]["conversions"]
    assert facts[f"{source} to {target}"] == pytest.approx(facts["torch kept going"], rel=1e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_rl_updates_are_those_of_torch(two, stage):
    facts = two["policy"]
    assert facts[f"zero-{stage}"] == pytest.approx(facts["torch"], rel=1e-4, abs=1e-5)
