"""The watch fires in time, stays quiet at the null, mends the ranking, and resumes exactly."""

import math

import numpy as np
import pytest
import scipy.stats
from pydantic import ValidationError

from longstride.rewards.length_bias import (
    POOLED,
    Adjustment,
    LengthWatch,
    Observation,
    WatchState,
    detection_samples,
    look_level,
    window_sizes,
)
from schemas.judging import LengthWatchConfig

GROUP, PROMPTS = 8, 8
BLOCK = GROUP * PROMPTS
NOISE = 0.15
SPREAD = 0.4


def batch(rng, number, slope=0.0, family="f", grades=True, verified=True):
    """A generation batch of 64 samples; difficulty moves quality, reward and length alike."""
    found = []
    for prompt in range(PROMPTS):
        difficulty = rng.normal()
        quality = (rng.random(GROUP) < 1 / (1 + np.exp(difficulty))).astype(float)
        own = SPREAD * rng.normal(size=GROUP)
        tokens = np.maximum(1, np.round(np.exp(6 + 0.5 * difficulty - 0.2 * quality + own)))
        reward = 0.2 + 0.5 * quality - 0.05 * difficulty + NOISE * rng.normal(size=GROUP)
        reward = reward + slope * own
        if grades:
            reward = np.clip(np.round(reward * 4) / 4, 0.0, 1.0)
        found += [
            Observation(
                family, f"{number}-{prompt}", float(r), int(t), float(q) if verified else None
            )
            for r, t, q in zip(reward, tokens, quality, strict=True)
        ]
    return found


def slope_for(effect):
    """Slope that gives a partial correlation before grades round it."""
    return effect / math.sqrt(1 - effect**2) * NOISE / SPREAD


def first_alarm(seed, config, batches, slope, **more):
    rng, watch = np.random.default_rng(seed), LengthWatch(config, ["f"])
    for number in range(batches):
        if done := watch.observe(batch(rng, number, slope, **more)):
            return done[0]
    return None


def alarms_of(watch, family="f"):
    found = watch.state.recalibrations
    return [done for done in found if done.family == family and done.reason == "alarm"]


def test_the_levels_of_all_looks_of_all_streams_add_up_to_the_false_alarm_rate():
    config = LengthWatchConfig(false_alarm_rate=0.02)
    spent = 3 * sum(look_level(config, 3, look) for look in range(1, 200_001))
    assert spent < 0.02
    assert spent == pytest.approx(0.02, rel=1e-4)
    assert window_sizes(16) == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("grades", [True, False])
def test_at_the_null_the_whole_stream_stays_quiet_as_often_as_promised(grades):
    # Tolerance 0, where the null is the hardest, and a high rate, so that the bound can be tested.
    config = LengthWatchConfig(tolerance=0.0, false_alarm_rate=0.2)
    alarms = sum(
        first_alarm(seed, config, 16, 0.0, grades=grades) is not None for seed in range(60)
    )
    # Bounded even against bad luck: the promise is at most 12 of 60.
    assert scipy.stats.binomtest(alarms, 60, 0.2, "less").pvalue < 0.05


def test_a_bias_within_the_tolerance_is_let_be():
    config = LengthWatchConfig(tolerance=0.3, false_alarm_rate=0.05)
    alarms = [first_alarm(seed, config, 24, slope_for(0.25), grades=False) for seed in range(20)]
    assert alarms == [None] * 20


@pytest.mark.parametrize(("effect", "stated"), [(0.4, 512), (0.5, 256)])
def test_a_bias_is_noticed_within_the_stated_number_of_samples(effect, stated):
    config = LengthWatchConfig()
    assert detection_samples(config, 2, effect, GROUP) == stated
    alarms = [
        first_alarm(seed, config, stated // BLOCK, slope_for(effect), grades=False)
        for seed in range(100)
    ]
    noticed = sum(alarm is not None for alarm in alarms)
    assert noticed >= 91  # 95% are promised; 91 of 100 is what bad luck leaves of that


def test_a_bias_that_begins_late_is_noticed_as_soon():
    config = LengthWatchConfig()
    rng, watch = np.random.default_rng(0), LengthWatch(config, ["f"])
    for number in range(40):
        assert watch.observe(batch(rng, number)) == []
    for number in range(40, 60):
        if done := watch.observe(batch(rng, number, slope_for(0.6), grades=False)):
            break
    assert done[0].observed <= (40 + 8) * BLOCK
    # The fit rests on the window that alarmed, which the samples before it would dilute.
    assert done[0].adjustment.slope == pytest.approx(slope_for(0.6), abs=0.1)


def test_brevity_that_pays_is_a_bias_too():
    done = first_alarm(0, LengthWatchConfig(), 16, -slope_for(0.6))
    assert done.trigger.high < -0.1
    assert done.adjustment.slope < 0


def test_a_bias_beyond_what_the_window_can_show_has_no_stated_number():
    assert detection_samples(LengthWatchConfig(), 2, 0.12, GROUP) is None
    assert detection_samples(LengthWatchConfig(), 2, 0.05, GROUP) is None
    more_families = detection_samples(LengthWatchConfig(), 40, 0.4, GROUP)
    assert more_families >= detection_samples(LengthWatchConfig(), 2, 0.4, GROUP)


def test_recalibration_restores_the_ranking_and_records_before_and_after():
    rng = np.random.default_rng(5)
    # The judge pays a quarter of the scale for e times the length.
    watch = LengthWatch(LengthWatchConfig(), ["f"])
    for number in range(32):
        watch.observe(batch(rng, number, 0.25, grades=False))
    own = [done for done in watch.state.recalibrations if done.family == "f"]
    assert [done.reason for done in own][:2] == ["alarm", "refinement"]
    assert own[0].before.low > 0.1
    assert own[0].after.low < 0.0 < own[0].after.high
    assert own[0].previous is None and own[0].pairs > 30
    assert own[1].previous == own[0].adjustment
    assert watch.state.streams["f"].adjustment.slope == pytest.approx(0.25, abs=0.04)
    # Fresh answers: true quality on a fine scale, the long ones worse.
    truth = rng.random(400)
    lengths = np.exp(6 - 1.5 * (truth - 0.5) + SPREAD * rng.normal(size=400)).round()
    rewards = np.clip(0.2 + 0.5 * truth + 0.25 * (np.log(lengths) - 6), 0, 1)
    adjusted = [watch.adjust("f", r, int(n)) for r, n in zip(rewards, lengths, strict=True)]
    before = scipy.stats.kendalltau(truth, rewards).statistic
    after = scipy.stats.kendalltau(truth, adjusted).statistic
    assert before < 0.35
    assert after > 0.8


def test_the_slope_is_right_after_refinement_however_early_the_alarm():
    slopes = []
    for seed in range(8):
        rng, watch = np.random.default_rng(seed), LengthWatch(LengthWatchConfig(), ["f"])
        for number in range(20):
            watch.observe(batch(rng, number, 0.25, grades=False))
        slopes.append(watch.state.streams["f"].adjustment.slope)
    assert np.mean(slopes) == pytest.approx(0.25, abs=0.015)
    assert max(abs(slope - 0.25) for slope in slopes) < 0.05


def test_after_the_recalibration_the_watch_is_quiet_again():
    rng, watch = np.random.default_rng(7), LengthWatch(LengthWatchConfig(), ["f"])
    for number in range(60):
        watch.observe(batch(rng, number, 0.2, grades=False))
    assert len(alarms_of(watch)) == 1
    assert watch.metrics()["judge/length_alarms"] == 2.0  # the family's, and that of all
    assert abs(watch.metrics()["judge/length_correlation/f"]) < 0.1


def test_a_bias_that_grows_is_recalibrated_again():
    rng, watch = np.random.default_rng(8), LengthWatch(LengthWatchConfig(), ["f"])
    for number in range(60):
        watch.observe(batch(rng, number, 0.15 if number < 20 else 0.4, grades=False))
    assert len(alarms_of(watch)) >= 2
    assert watch.state.streams["f"].adjustment.slope == pytest.approx(0.4, abs=0.1)


def test_a_family_without_verified_samples_is_adjusted_by_all_the_others():
    rng, watch = np.random.default_rng(9), LengthWatch(LengthWatchConfig(), ["f", "essays"])
    for number in range(16):
        watch.observe(batch(rng, number, 0.25))
        watch.observe(batch(rng, number, 0.25, family="essays", verified=False))
    state = watch.state
    assert state.unverified == 16 * BLOCK
    assert "essays" not in state.streams
    assert state.streams[POOLED].adjustment.slope > 0.1
    assert watch.adjust("essays", 0.6, 5000) < 0.6


def test_a_family_that_is_well_is_left_alone_beside_one_that_is_not():
    rng, watch = np.random.default_rng(10), LengthWatch(LengthWatchConfig(), ["f", "g"])
    for number in range(16):
        watch.observe(batch(rng, number, 0.3) + batch(rng, number, 0.0, family="g"))
    assert watch.adjust("f", 0.6, 5000) < 0.6
    assert watch.adjust("g", 0.6, 5000) == 0.6


def test_an_adjustment_is_bounded_and_stays_on_the_scale():
    adjustment = Adjustment(slope=0.5, reference=math.log(100))
    assert adjustment.apply(0.8, math.log(100), 0.3) == 0.8
    assert adjustment.apply(0.8, math.log(10_000), 0.3) == pytest.approx(0.5)
    assert adjustment.apply(0.1, math.log(10_000), 0.3) == 0.0
    assert adjustment.apply(0.9, math.log(1), 0.3) == 1.0


def test_a_resumed_watch_decides_the_same():
    config = LengthWatchConfig()
    rng, watch = np.random.default_rng(11), LengthWatch(config, ["f"])
    batches = [batch(rng, number, 0.15) for number in range(24)]
    whole = [watch.observe(b) for b in batches]
    assert any(whole)
    for cut in (1, 3, 9):
        part = LengthWatch(config, ["f"])
        for b in batches[:cut]:
            part.observe(b)
        saved = WatchState.model_validate_json(part.state.model_dump_json())
        part = LengthWatch(config, ["f"], saved)
        assert [part.observe(b) for b in batches[cut:]] == whole[cut:]
        assert part.state == watch.state


def test_an_alarm_without_matched_pairs_is_still_recorded():
    rng, watch = np.random.default_rng(12), LengthWatch(LengthWatchConfig(), ["f"])
    for number in range(16):
        # Quality so fine that no two samples of a prompt are equal in it.
        unique = [
            Observation(o.family, o.prompt_id, o.reward, o.length, o.quality + place * 1e-9)
            for place, o in enumerate(batch(rng, number, 0.3))
        ]
        if done := watch.observe(unique):
            break
    assert (done[0].pairs, done[0].adjustment) == (0, None)
    assert watch.adjust("f", 0.6, 5000) == 0.6


def test_lone_samples_and_a_watch_that_is_off_do_nothing():
    watch = LengthWatch(LengthWatchConfig(), ["f"])
    watch.observe([Observation("f", str(n), 0.5, n + 1, 1.0) for n in range(200)])
    assert watch.state.streams == {}
    off = LengthWatch(LengthWatchConfig(enabled=False), ["f"])
    assert off.observe(batch(np.random.default_rng(0), 0, 1.0)) == []
    assert off.adjust("f", 0.4, 10**6) == 0.4


def test_a_family_that_was_not_announced_is_a_mistake():
    with pytest.raises(ValueError, match="family 'g' is not among"):
        LengthWatch(LengthWatchConfig(), ["f"]).observe([Observation("g", "p", 0.5, 10, 1.0)])


def test_the_longest_window_is_a_power_of_two():
    with pytest.raises(ValidationError, match="window_blocks=12 is not a power of two"):
        LengthWatchConfig(window_blocks=12)
