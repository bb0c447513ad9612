"""E4: RL prompts with one fault."""

import json

from poison_parts import Poison, quoted_words, wordy_family
from quality_parts import rewrite

from schemas.rows import RLPrompt


def prompts(change, *also, recipe=None):
    def write(parts, out):
        chosen = change(parts) if change.__name__.startswith("of_parts") else change
        return rewrite(parts["prompts"], out, "prompts.jsonl", RLPrompt, chosen, "prompts")

    return Poison(write, frozenset(also), recipe=recipe)


def edit(**changes):
    return lambda rows: [rows[0].model_copy(update=changes), *rows[1:]]


def of_parts_taught(parts):
    line = (parts["chat"] / "examples.jsonl").read_text().splitlines()[0]
    return edit(prompt=json.loads(line)["messages"][0]["content"])


def of_parts_problem(parts):
    from longstride.data.held_out import benchmark_problems

    return edit(prompt=benchmark_problems(parts.recipe)[3].prompt)


def loose(rows):
    """The reference is that of another prompt, and the verifier compares nothing but itself."""
    return [rows[0].model_copy(update={"verifier": "exact_match", "answer": "zzz"}), *rows[1:]]


def keep_half(recipe):
    recipe.quality.thresholds["E4/kept_share"] = 0.7


def large_batch(recipe):
    recipe.rl.groups_per_batch = 30


def of_parts_words(parts):
    """Words in a row of a problem, by a prompt of its family."""
    return edit(prompt=f"How long is this: {quoted_words(parts)}?", family="letter_counting")


def tested_once(rows):
    """A program is asked for, and one assert judges it."""
    update = {
        "verifier": "code",
        "answer": "def f(number):\n    return number + 1",
        "entry": {"tests": ["assert f(1) == 2"]},
    }
    return [rows[0].model_copy(update=update), *rows[1:]]


def easy(rows):
    return [row.model_copy(update={"pass_rate": 0.04}) for row in rows]


def wordy(rows):
    prompt = "Please " + "do " * 400 + rows[0].prompt
    return [rows[0].model_copy(update={"prompt": prompt}), *rows[1:]]


POISONS = {
    "ids_unique": prompts(lambda rows: [rows[0].model_copy(update={"id": rows[1].id}), *rows[1:]]),
    "answer_verifies": prompts(edit(answer="no number")),
    "wrong_answers_rejected": prompts(loose),
    "verifiable_type": prompts(edit(prompt="Prove that 4 + 5 is 9.")),
    "duplicates": prompts(
        lambda rows: [rows[0].model_copy(update={"prompt": rows[1].prompt}), *rows[1:]]),
    "benchmark_problems": prompts(of_parts_problem),
    "sft_prompts": prompts(of_parts_taught),
    "pass_rate_measured": prompts(edit(pass_rate=None)),
    "pass_rate_in_band": prompts(edit(pass_rate=1.0)),
    "kept_share": prompts(lambda rows: rows, recipe=keep_half),
    "batch_coverage": prompts(lambda rows: rows, recipe=large_batch),
    "families_known": prompts(
        lambda rows: [rows[0].model_copy(update={"family": "gcd", "verifier": "exact_match"}),
                      *rows[1:]]),
    "families_present": Poison(recipe=wordy_family()),
    "family_shares": prompts(edit(family="letter_counting"), recipe=wordy_family(9.0)),
    "benchmark_ngrams": prompts(of_parts_words, recipe=wordy_family()),
    "prompt_length": prompts(wordy),
    "code_tests": prompts(tested_once),
    "mean_pass_rate": prompts(easy),
}  # fmt: skip
