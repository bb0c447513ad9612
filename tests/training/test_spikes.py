import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.training.spikes import SpikeWatch
from schemas.stages import SpikeConfig

DEFAULT = SpikeConfig()


def healthy(seed, steps=300):
    """Loss and gradient norm of a run that goes well: decay, plateaus, fat-tailed noise.

    The ranges are wider than what the tiny recipe shows: its noisiest stage (two rows a step) has
    losses that spread by 0.45 nats and norms that spread by 0.15 in the logarithm.
    """
    rng = np.random.default_rng(seed)
    step = np.arange(steps)
    level, drop = rng.uniform(0.1, 4), rng.uniform(0, 6)
    noise = rng.uniform(0.01, 0.4) * rng.standard_t(8, steps)
    losses = level + drop * np.exp(-step / rng.uniform(5, 400)) + noise
    trend = rng.uniform(-1.5, 1.5) * (1 - np.exp(-step / rng.uniform(50, 400)))
    log_norms = rng.normal(0, 2) + trend + rng.uniform(0.02, 0.25) * rng.standard_t(8, steps)
    return np.maximum(losses, 0.01).tolist(), np.exp(log_norms).tolist()


def actions(watch, losses, norms):
    return [watch.judge(*pair).action for pair in zip(losses, norms, strict=True)]


def test_of_2000_healthy_runs_none_backs_off_and_at_most_one_step_in_10000_is_skipped():
    skipped = 0
    for seed in range(2000):
        losses, norms = healthy(seed)
        watch = SpikeWatch(DEFAULT, reference_loss=losses[0])
        skipped += len(losses) - actions(watch, losses, norms).count("ok")
        assert watch.back_offs == 0, f"seed {seed}"
    assert skipped <= 2000 * 300 / 10_000


EXPLOSIONS = {
    "gradient norm x 10": lambda loss, norm, k: (loss, 10 * norm),
    "gradient norm grows by e a step": lambda loss, norm, k: (loss, norm * math.exp(min(k, 300))),
    "loss + 4 nats": lambda loss, norm, k: (loss + 4, norm),
    "loss is NaN": lambda loss, norm, k: (math.nan, norm),
    "gradient overflows": lambda loss, norm, k: (loss, math.inf),
}


@pytest.mark.parametrize("name", EXPLOSIONS)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), onset=st.integers(DEFAULT.warmup_steps, 200))
def test_a_planted_explosion_backs_off_within_eight_steps(name, seed, onset):
    losses, norms = healthy(seed)
    for k, step in enumerate(range(onset, len(losses))):
        losses[step], norms[step] = EXPLOSIONS[name](losses[step], norms[step], k)
    found = actions(SpikeWatch(DEFAULT), losses, norms)
    assert "back_off" in found[onset : onset + 8]
    assert "back_off" not in found[:onset]


@given(start=st.floats(0.5, 8), extra=st.floats(0.1, 20))
def test_an_explosion_in_the_first_steps_is_measured_against_the_loss_before(start, extra):
    watch = SpikeWatch(DEFAULT, reference_loss=start)
    loss = start + DEFAULT.loss_jump + extra
    assert actions(watch, [loss] * 3, [1.0] * 3) == ["skip", "skip", "back_off"]


STREAM = st.lists(
    st.tuples(
        st.one_of(st.floats(0, 12), st.sampled_from([math.nan, math.inf, 50.0])),
        st.one_of(st.floats(0, 3), st.sampled_from([math.nan, math.inf, 1e9])),
    ),
    max_size=120,
)
EAGER = st.builds(
    SpikeConfig, history=st.just(12), warmup_steps=st.integers(4, 12), patience=st.integers(1, 4),
    hold_steps=st.integers(1, 9), max_back_offs=st.integers(0, 3),
)  # fmt: skip


@given(config=EAGER, stream=STREAM, cut=st.integers(0, 120), marks=st.sets(st.integers(0, 120)))
def test_a_watch_resumed_at_any_step_decides_as_if_it_had_never_stopped(config, stream, cut, marks):
    straight = SpikeWatch(config, reference_loss=3.0)
    current = SpikeWatch(config, reference_loss=3.0)
    for step, (loss, norm) in enumerate(stream):
        if step == cut:
            saved = json.loads(json.dumps(current.state(), allow_nan=False))
            current = SpikeWatch(config)
            current.load_state(saved)
        if step in marks:
            straight.mark()
            current.mark()
        assert straight.judge(loss, norm) == current.judge(loss, norm)
        assert straight.learning_rate_scale == current.learning_rate_scale
    assert straight.state() == current.state()


@given(config=EAGER, stream=STREAM)
def test_back_offs_are_bounded_and_apart_and_every_spike_is_left_out(config, stream):
    watch = SpikeWatch(config)
    found = [watch.judge(*pair).action for pair in stream]
    at = [step for step, action in enumerate(found) if action == "back_off"]
    assert len(at) <= config.max_back_offs
    assert all(later - earlier >= config.patience for earlier, later in pairwise(at))
    assert watch.spikes == len(found) - found.count("ok")
    for step, (loss, norm) in enumerate(stream):
        if not (math.isfinite(loss) and math.isfinite(norm)):
            assert found[step] != "ok"


@given(config=EAGER, hold=st.integers(1, 9))
def test_the_lower_rate_holds_for_its_steps_and_each_back_off_lowers_it_further(config, hold):
    config = config.model_copy(update={"hold_steps": hold, "patience": 1, "max_back_offs": 2})
    watch = SpikeWatch(config)
    scales = []
    for loss in [math.nan] + [1.0] * hold + [math.nan] + [1.0] * (2 * hold + 1):
        watch.judge(loss, 1.0)
        scales.append(watch.learning_rate_scale)
    first, second = scales[: hold + 1], scales[hold + 1 :]
    assert first == [0.5] * hold + [1.0]
    assert second == [0.25] * (2 * hold) + [1.0, 1.0]


def test_when_back_offs_are_used_up_it_gives_up_and_says_why():
    watch = SpikeWatch(SpikeConfig(patience=1, max_back_offs=1))
    assert watch.judge(math.nan, 1.0).action == "back_off"
    decision = watch.judge(math.nan, 1.0)
    assert decision.action == "give_up"
    assert decision.reason == "the loss is nan, after 1 back-offs"


def test_one_bad_batch_is_skipped_and_forgotten():
    watch = SpikeWatch(DEFAULT)
    losses = [2.0, 2.1, 1.9, 2.05] * 10
    losses[25] = 9.0
    found = actions(watch, losses, [1.0, 1.1, 0.9, 1.05] * 10)
    assert found.count("skip") == 1 and found[25] == "skip"
    assert watch.learning_rate_scale == 1.0
    assert watch.calm


def test_a_back_off_returns_to_the_history_of_the_snapshot():
    watch = SpikeWatch(SpikeConfig(patience=1))
    actions(watch, [2.0] * 20, [1.0] * 20)
    watch.mark()
    marked = watch.state()["losses"]
    actions(watch, [3.9] * 20, [1.0] * 20)
    watch.judge(math.nan, 1.0)
    assert watch.state()["losses"] == marked


def test_a_watch_that_is_off_lets_everything_pass():
    watch = SpikeWatch(SpikeConfig(enabled=False))
    assert actions(watch, [math.nan] * 9, [math.inf] * 9) == ["ok"] * 9


def test_a_warm_up_longer_than_the_history_is_refused():
    with pytest.raises(ValueError, match="warmup_steps=20 exceeds history=10"):
        SpikeConfig(history=10, warmup_steps=20)
