"""What one rank does for test_sharded_snapshots.py: leave steps out and go back, ZeRO 0 to 3."""

import json
import math
import sys
import warnings
from pathlib import Path

import torch
from engine_program import CONFIG, sharded, train
from training_parts import write_packed

from longstride.training.launch import join
from longstride.training.loop import accumulate
from longstride.training.packed import RowCursor, open_packed


def state(engine):
    whole = dict(engine.weights()) | dict(engine.optimizer_state())
    return {name: value.clone() for name, value in whole.items()}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def left_out(engine, rows, poison=1.0):
    """A step that is refused: whether anything changed, what norm was asked about, the counter."""
    asked = []
    before = state(engine)
    if math.isfinite(poison):
        accumulate(engine, rows.take(RowCursor(rows.rows, 6, seed=5).next()))
    else:
        part = next(rows.microbatches(32))
        loss = engine.forward(lambda model: model(part.tokens_NT).hidden_BTD.float().sum())
        engine.backward(loss * poison)
    norm = engine.step(1e-2, 1.0, lambda norm: bool(asked.append(norm)))
    return [same(before, state(engine)), str(asked), norm, engine.skipped_steps]


def main(folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ranks = join(120)
    packed = write_packed(folder / f"packed-{ranks.count}-{ranks.rank}", rows=24)
    rows = open_packed(packed, CONFIG.vocab_size)
    facts = {}
    for stage in range(4):
        engine = sharded(ranks, stage)
        fresh = engine.snapshot()
        train(engine, rows, 3)
        facts[f"refused-{stage}"] = left_out(engine, rows)
        facts[f"poisoned-{stage}"] = left_out(engine, rows, poison=math.inf)
        kept, snapshot = state(engine), engine.snapshot()
        straight = train(engine, rows, 2)
        engine.restore(snapshot)
        facts[f"restored-{stage}"] = same(kept, state(engine))
        facts[f"again-{stage}"] = train(engine, rows, 2) == straight
        engine.restore(fresh)
        facts[f"from the start-{stage}"] = train(engine, rows, 3)
        facts[f"new-{stage}"] = train(sharded(ranks, stage), rows, 3)
    print("\n" + json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
