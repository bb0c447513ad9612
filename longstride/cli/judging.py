"""`longstride calibrate-judge`: a recipe's judge beside people's labels."""

from __future__ import annotations

import argparse

from longstride.cli.recipes import open_named_recipe
from longstride.store.files import read_jsonl
from schemas.judging import LabelledAnswer


def calibrate_judge(arguments: argparse.Namespace) -> int:
    """Judge labelled answers, write and print the report; 1 when nothing could be judged."""
    # Here, because the command starts without numpy.
    from longstride.rewards.generative.calibration import calibrate, markdown, write_report
    from longstride.rewards.generative.judge import open_model_judge

    recipe = open_named_recipe(arguments.recipe, arguments.overrides)
    rows = list(read_jsonl(arguments.labelled, LabelledAnswer))
    families = {row.family for row in rows}
    with open_model_judge(recipe, arguments.output, families) as judge:
        report = calibrate(judge, rows)
    print(markdown(report))
    print(write_report(report, arguments.output))
    return 0 if any(found.judged for found in report.agreements) else 1
