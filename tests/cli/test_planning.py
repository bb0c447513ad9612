"""`longstride plan` as a person or a script uses it."""

import json
import re

import pytest

from longstride.cli.main import main


def test_the_plan_of_the_report_s_recipe_names_its_assumptions_and_sums(capsys):
    assert main(["plan", "minimax-m1"]) == 0
    out = capsys.readouterr().out
    assert "512 x H800 at 2.07 dollars an hour" in out
    rounds = re.findall(r"^round .* ([\d,]+)  (?:compute|memory)$", out, re.MULTILINE)
    (total,) = re.findall(r"^all of RL .* ([\d,]+)  $", out, re.MULTILINE)
    dollars = [int(value.replace(",", "")) for value in (*rounds, total)]
    assert len(rounds) == 24 and abs(sum(dollars[:-1]) - dollars[-1]) <= 24


def test_json_holds_the_same_numbers(capsys):
    assert main(["plan", "minimax-m1", "--json", "--gpus", "1024", "--gpu", "h200"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["assumed"]["gpu"]["name"] == "h200" and len(values["costs"]) == 29


def test_the_page_has_both_charts_and_asks_for_nothing_from_outside(tmp_path, capsys):
    path = tmp_path / "plan.html"
    assert main(["plan", "minimax-m1", "--html", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    assert text.count("<figure") == 2 and "DeepSeek-R1 (absorbed MLA)" in text
    assert not re.search(r"(src|href)=\"http", text)


@pytest.mark.parametrize("options", [["--gpus", "0"], ["--gpu-hour", "-1"], ["--gpus", "8"]])
def test_what_cannot_be_is_refused(options, capsys):
    assert main(["plan", "minimax-m1", *options]) == 2
    assert "longstride: " in capsys.readouterr().err


def test_a_share_is_a_share(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "minimax-m1", "--training-utilisation", "35"])
    assert "give a number in (0, 1]" in capsys.readouterr().err


def test_check_shows_the_cost_of_recipes_for_gpus_only(capsys):
    main(["check", "minimax-m1"])
    assert "H800 hours" in capsys.readouterr().out
    main(["check", "tiny"])
    assert "H800" not in capsys.readouterr().out
