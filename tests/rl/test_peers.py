"""TRL's and verl's own losses against the same cases as ours: `make test-peers`."""

import pytest

from longstride.rl.conformance.checking import PEER_TOLERANCE, check_all
from longstride.rl.conformance.losses import installed_peers, longstride_loss, trl_loss, verl_loss

pytestmark = [
    pytest.mark.peers,
    # Foreign packages warn about each other's versions when they are imported.
    pytest.mark.filterwarnings("ignore"),
]


def by_status(loss):
    found = {}
    for outcome in check_all(loss, tolerance=PEER_TOLERANCE):
        found.setdefault(outcome.status, set()).add(outcome.case.name)
    return found


def test_both_are_installed():
    assert {name.split()[0] for name in installed_peers()} == {"trl", "verl"}


def test_trl_agrees_wherever_it_has_a_setting_but_for_overflowing_padding_under_a_clip():
    found = by_status(trl_loss)
    assert found.get("differs") == {"ppo-padding"}
    assert "fails" not in found
    assert {"rare-token", "cap-both-signs", "padding", "ragged", "microbatches", "dapo", "grpo",
            "gspo"} <= found["agrees"]  # fmt: skip


def test_verl_agrees_wherever_it_has_a_setting_but_for_a_lost_probability():
    found = by_status(verl_loss)
    assert found.get("differs") == {"lost-probability"}
    assert {"rare-token", "floor", "cap-both-signs", "padding", "ragged", "microbatches", "dapo",
            "grpo", "gspo", "anchor-rollout"} <= found["agrees"]  # fmt: skip
    assert "fails" not in found


@pytest.mark.parametrize(("loss", "cap"), [(trl_loss, 0.2), (verl_loss, 1.2)])
def test_their_own_default_caps_are_not_the_papers(loss, cap):
    """TRL's unset epsilon_high falls back to a cap of 0.2; verl's 0.2 is an offset from 1."""

    def with_default(*, algorithm, **arguments):
        return loss(algorithm={**algorithm, "is_weight_cap": cap}, **arguments)

    red = {o.case.name for o in check_all(with_default) if o.status == "differs"}
    assert {"cap-both-signs", "padding"} <= red


def test_ours_agrees_in_their_environment_too():
    assert set(by_status(longstride_loss)) == {"agrees"}
