import json
import sys

import pytest

from longstride.cli.main import main

WRONG = """
def loss(*, logp, old_logp, advantages, mask, update_tokens, algorithm, **_):
    weight = (logp - old_logp).exp().clamp(max=0.2).detach()
    return -(weight * advantages[:, None] * logp * mask).sum() / update_tokens
"""


@pytest.fixture
def outsider(tmp_path, monkeypatch):
    (tmp_path / "outsider_loss.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "outsider_loss:loss"
    sys.modules.pop("outsider_loss", None)


def test_our_losses_agree_and_the_table_says_what_each_case_asks(capsys):
    assert main(["conform"]) == 0
    table = capsys.readouterr().out
    assert "longstride: agrees in 23" in table
    assert "a rare token beyond the cap keeps a capped gradient" in table


def test_float32_agrees_too(capsys):
    assert main(["conform", "--float32"]) == 0


def test_a_wrong_loss_of_somebody_else_is_told_from_ours_and_its_bug_is_named(outsider, capsys):
    assert main(["conform", "--target", outsider]) == 1
    table = capsys.readouterr().out
    assert "longstride: agrees in 23" in table
    assert "looks like: cap is 0.2 instead of an absolute 1 + eps" in table


def test_json_has_every_case_with_its_settings(outsider, capsys):
    assert main(["conform", "--json", "--target", outsider]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {row["status"] for row in found["longstride"]} == {"agrees"}
    row = next(row for row in found[outsider] if row["case"] == "rare-token")
    assert row["status"] == "differs" and row["algorithm"]["is_weight_cap"] == 1.2


def test_a_target_that_cannot_be_imported_is_a_usage_error(capsys):
    assert main(["conform", "--target", "nowhere"]) == 2
    assert "package.module:function" in capsys.readouterr().err
