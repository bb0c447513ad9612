"""Builders shared by the tests of the data room."""

import json
from pathlib import Path

from schemas.recipe import Recipe

PROSE = (
    "The night train left the valley before dawn, and the guard counted {n} lanterns along the\n"
    "platform. Nobody asked why the {n}th one was always dark, although every child could say so.\n"
)


def chain_sum(*terms: int) -> dict:
    levels = [
        {"parameters": {"min_terms": n, "max_terms": n, "min_digits": 1, "max_digits": 1}}
        for n in terms
    ]
    return {"name": "chain_sum", "levels": levels}


def make_recipe(folder: Path, **changes) -> Recipe:
    values = {
        "name": "small",
        "seed": 7,
        "data": {
            "sources": [
                {"kind": "files", "name": "prose", "domain": "web", "uri": str(folder)},
                {"kind": "reasoning_gym", "name": "sums", "domain": "reasoning", "documents": 300},
            ],
            "mixture": {"web": 0.7, "reasoning": 0.3},
            "characters": 60_000,
            "document_characters": 1_500,
            "cleaning": None,
        },
        "tasks": [chain_sum(2, 3, 4)],
        "extension": [
            {"window": 128, "rope_base": 20_000, "tokens": 8_000, "learning_rate": 1e-3},
            {"window": 256, "rope_base": 40_000, "tokens": 8_000, "learning_rate": 1e-3},
        ],
        "sft": {"examples": 200, "window": 128},
        "rl": {"groups_per_batch": 8, "curation": {"candidates": 40, "samples": 4}},
        "benchmark": {"problems_per_level": 5},
    }
    return Recipe.model_validate({**values, **changes})


def json_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
