"""What one rank does for test_sharded.py: train with every ZeRO stage and print the facts.

The oracle is the plain torch engine in the same process, on the same data, with one rank.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from training_parts import MODEL, rollout, write_packed

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from longstride.rl.objectives import objective_of
from longstride.rl.reflection import ReflectionMatcher
from longstride.training import updating
from longstride.training.engine import TorchEngine
from longstride.training.engines import create_engine
from longstride.training.guarding import UpdateGuard
from longstride.training.launch import join
from longstride.training.loop import accumulate, evaluate
from longstride.training.packed import RowCursor, open_packed
from longstride.training.ranks import Ranks
from schemas.algorithms import CispoConfig
from schemas.engine import DeepSpeedEngine
from schemas.engine import TorchEngine as TorchConfig
from schemas.stages import OptimizerConfig

STEPS = 20
CONFIG = MODEL.model_copy(update={"router_aux_loss_coef": 0.01})
OPTIMIZER = OptimizerConfig(eps=1e-15)
SHARED = {"microbatch_tokens": 32}


def fresh_model():
    model = HybridModel(CONFIG)
    model.initialise(3)
    return model


def sharded(ranks, stage, optimizer=OPTIMIZER, **options):
    whole = {"persistent_elements": 0} if stage == 3 else {}
    config = DeepSpeedEngine(ranks=ranks.count, zero_stage=stage, **SHARED, **whole, **options)
    return create_engine(fresh_model(), optimizer, config, ranks)


def plain(**options):
    return TorchEngine(fresh_model(), OPTIMIZER, TorchConfig(**SHARED, **options))


def train(engine, rows, steps, skip=0):
    """Losses, gradient norms and held-out losses of `steps` steps; 3 microbatches a step."""
    cursor = RowCursor(rows.rows, 6, seed=1)
    for _ in range(skip):
        cursor.next()
    curve = []
    for _ in range(steps):
        loss = accumulate(engine, rows.take(cursor.next()))
        norm = engine.step(1e-2, 1.0)
        curve += [loss, norm]
    return [*curve, evaluate(engine, rows)]


def largest_difference(engine, reference):
    """Of weights and of moments, and the step that the optimizer counts."""
    ours = dict(engine.weights()) | dict(engine.optimizer_state())
    theirs = dict(reference.weights()) | dict(reference.optimizer_state())
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


def agreement(ranks, rows):
    reference = plain()
    facts = {"torch": train(reference, rows, STEPS)}
    for stage in range(4):
        engine = sharded(ranks, stage)
        facts[f"zero-{stage}"] = train(engine, rows, STEPS)
        facts[f"difference-{stage}"] = largest_difference(engine, reference)
    return facts


def options(ranks, rows):
    """Offloading and activation checkpointing change nothing; bf16 leaves the fp32 parts alone."""
    facts = {"torch": train(plain(), rows, 5)}
    for stage in (1, 2, 3):
        engine = sharded(ranks, stage, offload_optimizer=True, activation_checkpointing=True)
        facts[f"options-{stage}"] = train(engine, rows, 5)
    facts["torch-bf16"] = train(plain(dtype="bfloat16"), rows, 5)
    for stage in (0, 3):
        engine = sharded(ranks, stage, dtype="bfloat16")
        facts[f"bf16-{stage}"] = train(engine, rows, 5)
        facts[f"types-{stage}"] = types_in(engine, rows)
        sampler = engine.sampling_model()
        facts[f"sampler-{stage}"] = {n: str(p.dtype) for n, p in sampler.named_parameters()}
    return facts


def types_in(engine, rows):
    """The type that each kind of module really computes in."""
    seen = {}

    def note(name):
        def hook(module, inputs, output):
            first = output if isinstance(output, torch.Tensor) else output[0]
            seen[name] = str(first.dtype)

        return hook

    block = engine.model.blocks[0]
    for name, module in (("norm", block.mlp_norm), ("experts", block.mlp),
                         ("router", block.mlp.router), ("projection", block.attention.out_proj),
                         ("head", engine.model.head)):  # fmt: skip
        module.register_forward_hook(note(name))
    part = next(rows.microbatches(32))

    def run(model):
        hidden = model(part.tokens_NT).hidden_BTD
        return model.logits(hidden)

    with torch.no_grad():
        engine.forward(run)
    return seen


def bad_gradients(ranks, rows):
    """A gradient that is not finite on one rank only."""
    facts = {}
    for stage in range(4):
        engine = sharded(ranks, stage)
        before = {name: value.clone() for name, value in engine.weights()}
        norms = []

        def poison(engine=engine):
            part = next(rows.microbatches(32))
            loss = engine.forward(lambda model: model(part.tokens_NT).hidden_BTD.float().sum())
            last = ranks.rank == ranks.count - 1
            engine.backward(loss * (float("inf") if last else 0.0))

        for _ in range(2):
            poison()
            norms.append(engine.step(1e-2, 1.0))
        unchanged = all(torch.equal(before[n], w) for n, w in engine.weights())
        message = ""
        try:
            poison()
            engine.step(1e-2, 1.0)
        except CheckpointError as error:
            message = str(error)
        facts[f"bad-{stage}"] = [norms, unchanged, engine.skipped_steps, message]
    return facts


def tiny_gradients(ranks, rows):
    """How far AdamW moves a weight whose gradient is 1e-12, at eps 1e-15 and at 1e-8."""
    facts = {}
    for stage in range(4):
        for eps in (1e-15, 1e-8):
            engine = sharded(ranks, stage, OptimizerConfig(eps=eps, weight_decay=0.0))
            before = dict(engine.weights())["head.weight"].clone()
            for _, weight in ranks.share([None]):
                loss = engine.forward(lambda model: model.logits(model.norm.weight).sum())
                engine.backward(weight * 1e-12 * loss)
            engine.step(1e-3, 1e9)
            moved = (dict(engine.weights())["head.weight"] - before).abs()
            facts[f"moved-{stage}-{eps}"] = [float(moved.min()), float(moved.max())]
    return facts


def conversions(ranks, rows, folder):
    """Leave the state after 5 steps of ZeRO 3 for others, and go on from what they left.

    The state of one rank is that of plain torch; the program with one rank runs after the other.
    """
    engine, reference = sharded(ranks, 3), plain()
    train(engine, rows, 5)
    train(reference, rows, 5)
    for name, source in (("torch", reference), (f"{ranks.count}-ranks", engine)):
        state = dict(source.weights()) | dict(source.optimizer_state())
        if ranks.first:
            path = folder / f"{name}.safetensors"
            save_file({n: t.contiguous() for n, t in state.items()}, path)
    facts = {"torch kept going": train(reference, rows, 5, skip=5)}
    facts["ranks kept going"] = train(engine, rows, 5, skip=5)
    ranks.barrier()
    names = [name for name, _ in reference.weights()]
    sources = ("torch", "2-ranks") if ranks.count == 2 else ("2-ranks",)
    for path in (folder / f"{source}.safetensors" for source in sources):
        state = load_file(path)

        def restored(state=state):
            model = fresh_model()
            model.load_state_dict({name: state[name] for name in names})
            return model

        targets = [(f"zero-{stage}", stage) for stage in (1, 2, 3)]
        for target, stage in [*targets, ("torch", None)]:
            config = TorchConfig(**SHARED)
            if stage is not None:
                config = DeepSpeedEngine(ranks=ranks.count, zero_stage=stage, **SHARED)
            other = create_engine(restored(), OPTIMIZER, config, ranks)
            other.load_optimizer_state(state)
            facts[f"{path.stem} to {target}"] = train(other, rows, 5, skip=5)
    return facts


def policy(ranks, rows):
    """Two RL updates with each stage and with plain torch."""
    settings = updating.UpdateSettings(
        objective=objective_of(CispoConfig()), updates=2, learning_rate=1e-2, grad_clip=1.0,
        temperature=1.0, minimum_correlation=0.99,
    )  # fmt: skip

    def updates(engine):
        batch = [
            rollout((3, 4, 5, 6), advantage=1.0, sample=0),
            rollout((7, 8), advantage=-1.0, sample=1),
            rollout((10, 11, 12), (1, 2, 3, 4), advantage=0.5, group=1),
            rollout((13,), (1,), advantage=-0.5, group=1, sample=1),
            rollout((20, 21), (1, 5), advantage=-0.25, group=1, sample=2),
        ]
        entropy = updating.recompute_old_policy(engine, batch, 1.0)
        guard, matcher = UpdateGuard(1, None), ReflectionMatcher({}, lambda token: b"x")
        found = [
            updating.update(engine, part, settings, guard, matcher).metrics
            for part in (batch[:3], batch[3:])
        ]
        numbers = [entropy, *(row[name] for row in found for name in sorted(row))]
        numbers += [x for one in batch for x in one.trainer_logprobs + one.importance_weights]
        sampler = engine.sampling_model()
        numbers += [float(p.detach().double().sum()) for p in sampler.parameters()]
        return numbers

    # At eps 1e-15 the sign of a gradient that should be zero moves a weight by the whole rate.
    optimizer, short = OptimizerConfig(eps=1e-8), {"microbatch_tokens": 12}
    facts = {"torch": updates(TorchEngine(fresh_model(), optimizer, TorchConfig(**short)))}
    for stage in range(4):
        config = DeepSpeedEngine(ranks=ranks.count, zero_stage=stage, **short)
        engine = create_engine(fresh_model(), optimizer, config, ranks)
        facts[f"zero-{stage}"] = updates(engine)
    return facts


def main(folder, parts):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ranks = join(120)
    directory = folder / f"packed-{ranks.count}-{ranks.rank}"
    rows = open_packed(write_packed(directory, rows=24), CONFIG.vocab_size)
    assert isinstance(ranks, Ranks)
    everything = {
        "agreement": lambda: agreement(ranks, rows), "options": lambda: options(ranks, rows),
        "bad_gradients": lambda: bad_gradients(ranks, rows),
        "tiny_gradients": lambda: tiny_gradients(ranks, rows),
        "conversions": lambda: conversions(ranks, rows, folder),
        "policy": lambda: policy(ranks, rows),
    }  # fmt: skip
    facts = {part: everything[part]() for part in parts}
    print("\n" + json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
