import json
import math
from pathlib import Path

import pytest
import torch
from training_parts import MODEL, tokenizer_directory, trained_tokenizer, write_packed

from longstride.evals.passkey import DEPTHS, PasskeyRow, passkey_rows
from longstride.model.hybrid import HybridModel
from longstride.recipe.loading import load_recipe
from longstride.tokens.tokenizer import Tokenizer
from longstride.training import language
from longstride.training.checkpoints import read_manifest
from longstride.training.engine import TorchEngine
from longstride.training.packed import open_packed
from longstride.training.probing import passkey_scores, position_edges, position_perplexity
from schemas.stages import OptimizerConfig

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"
CONFIG = MODEL.model_copy(update={"vocab_size": 300})


def engine_of(config=CONFIG, seed=0):
    model = HybridModel(config)
    model.initialise(seed)
    return TorchEngine(model, OptimizerConfig())


@pytest.mark.parametrize(
    ("window", "edges"),
    [
        (16, [0, 16]),
        (64, [0, 16, 32, 64]),
        (512, [0, 16, 32, 64, 128, 256, 512]),
        (100, [0, 25, 50, 100]),
        (1_048_576, [0, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576]),
    ],
)
def test_position_buckets_double_up_to_the_window(window, edges):
    assert position_edges(window) == edges


def test_perplexity_by_position_is_that_of_the_documents_own_positions(tmp_path):
    engine = engine_of(MODEL)
    rows = open_packed(write_packed(tmp_path / "p", rows=5, window=64), 64)
    rows.segments_NT[:, 40:] = 1
    rows.positions_NT[:, 40:] = torch.arange(24)
    rows.loss_mask_NT[:, 40] = False
    found = position_perplexity(engine, rows, microbatch_tokens=128)
    losses = {"positions_0_16": [], "positions_16_32": [], "positions_32_64": []}
    for number in range(5):
        for start, stop in ((0, 40), (40, 64)):
            tokens = rows.tokens_NT[number : number + 1, start:stop]
            with torch.no_grad():
                logits = engine.model.logits(engine.model(tokens).hidden_BTD)[0]
            logp = logits.log_softmax(-1)[:-1].gather(1, tokens[0, 1:, None])[:, 0]
            for position, value in enumerate(logp.tolist(), start=1):
                first = max(edge for edge in (0, 16, 32) if edge <= position)
                losses[f"positions_{first}_{max(16, 2 * first)}"].append(-value)
    want = {name: math.exp(sum(values) / len(values)) for name, values in losses.items()}
    assert found == pytest.approx(want, rel=1e-4)


def test_passkey_scores_are_those_of_one_row_at_a_time():
    engine = engine_of()
    rows = passkey_rows(trained_tokenizer(), list(range(20, 200)), 128, samples=2, seed=1)
    scores = passkey_scores(engine, rows, microbatch_tokens=512)
    cell = [row for row in rows if row.length == 128 and row.depth == 0.5]
    right = ranks = margin = 0.0
    for row in cell:
        with torch.no_grad():
            hidden = engine.model(torch.tensor([row.tokens])).hidden_BTD
            logp = engine.model.logits(hidden)[0].log_softmax(-1)
        for place, (token, rivals) in enumerate(zip(row.key, row.rivals, strict=True)):
            at = logp[row.length - len(row.key) + place - 1]
            right += float(at.argmax() == token)
            ranks += 1 + sum(float(at[rival]) > float(at[token]) for rival in rivals)
            margin += float(at[token]) - sum(float(at[r]) for r in rivals) / len(rivals)
    count = sum(len(row.key) for row in cell)
    assert scores["length_128/depth_50/accuracy"] == pytest.approx(right / count)
    assert scores["length_128/depth_50/rank"] == pytest.approx(ranks / count)
    assert scores["length_128/depth_50/margin"] == pytest.approx(margin / count, abs=1e-4)
    assert len(scores) == 3 * len(DEPTHS) * len({row.length for row in rows})


class _Copier(HybridModel):
    """Puts all its mass on the token that followed the last occurrence of the present one."""

    def logits(self, hidden):
        return hidden

    def forward(self, tokens_BT, segments_BT=None, positions_BT=None):
        hidden = torch.zeros(*tokens_BT.shape, self.config.vocab_size)
        for row, tokens in enumerate(tokens_BT.tolist()):
            for place in range(1, len(tokens)):
                before = [i for i in range(place) if tokens[i] == tokens[place]]
                if before:
                    hidden[row, place, tokens[before[-1] + 1]] = 20.0
        return super().forward(tokens_BT[:, :1])._replace(hidden_BTD=hidden)


def test_a_model_that_copies_retrieves_every_key_and_one_that_guesses_is_at_chance():
    key = [5, 6, 7]
    row = PasskeyRow(12, 0.0, [9, *key, 20, 21, 22, 23, 9, *key], key, [[6, 7], [5, 7], [5, 6]])
    copier = TorchEngine(_Copier(CONFIG), OptimizerConfig())
    found = passkey_scores(copier, [row], 64)
    assert found["length_12/depth_0/accuracy"] == 1.0
    assert found["length_12/depth_0/rank"] == 1.0
    assert found["length_12/depth_0/margin"] == pytest.approx(20.0)
    rows = passkey_rows(trained_tokenizer(), list(range(20, 200)), 64, samples=60, seed=1)
    guess = passkey_scores(engine_of(), rows, 4096)
    margins = [value for name, value in guess.items() if name.endswith("margin")]
    assert sum(margins) / len(margins) == pytest.approx(0.0, abs=0.05)


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A stage that extends the window, with everything it measures."""
    folder = tmp_path_factory.mktemp("extended")
    recipe = load_recipe(
        "tiny",
        ["extension.0.window=64", "extension.0.rows_per_step=4", "extension.0.tokens=2000",
         "extension.0.warmup_steps=3", "extension.0.passkey_samples=1",
         "extension.0.rope_base=20000"],
        [RECIPES],
    )  # fmt: skip
    recipe = recipe.model_copy(update={"model": CONFIG})
    language.initialise(recipe, folder / "init")
    packed = write_packed(folder / "packed", rows=70, window=64, vocabulary=300)
    final = language.train_stage(
        recipe, "extend-1", packed, folder / "init", folder / "out", folder / "m",
        tokenizer_directory(),
    )  # fmt: skip
    rows = [json.loads(line) for line in (folder / "m" / "metrics.jsonl").read_text().splitlines()]
    return folder, final, rows


def test_a_stage_records_the_tokenizer_that_it_was_given(extended):
    folder, _, _ = extended
    tokenizer = Tokenizer.load(tokenizer_directory())
    assert read_manifest(folder / "out").parents["tokenizer"] == tokenizer.digest


def test_an_extension_stage_measures_positions_and_passkeys_before_and_after(extended):
    folder, final, rows = extended
    measured = [row for row in rows if row["name"].startswith(("validation/perp", "passkey/"))]
    assert {row["step"] for row in measured} == {0, 8}
    names = {row["name"] for row in measured if row["step"] == 0}
    assert names == {row["name"] for row in measured if row["step"] == 8}
    assert {"validation/perplexity/positions_0_16", "passkey/length_64/depth_100/margin"} <= names
    metrics = read_manifest(folder / "out").metrics
    for row in measured:
        when = "before" if row["step"] == 0 else "after"
        assert metrics[f"{row['name']}/{when}"] == row["value"]
    assert {"passkey/margin/before", "passkey/rank/after", "spikes", "back_offs"} <= set(final)
    assert final["validation/perplexity/positions_32_64/after"] < 300


def test_an_extension_stage_warms_its_learning_rate_up(extended):
    rates = [row["value"] for row in extended[2] if row["name"] == "train/learning_rate"]
    peak = 5e-4
    assert rates == pytest.approx([peak / 3, 2 * peak / 3, *[peak] * 6])


def test_the_first_measure_is_of_the_parent_with_its_own_rope_base(extended, tmp_path):
    folder, _, rows = extended
    parent = language.open_checkpoint(folder / "init").model
    _, held_out = language._split(open_packed(folder / "packed", 300))
    want = position_perplexity(TorchEngine(parent, OptimizerConfig()), held_out, 4096)
    found = {r["name"]: r["value"] for r in rows if r["step"] == 0 and "positions" in r["name"]}
    assert found == {f"validation/perplexity/{name}": value for name, value in want.items()}
