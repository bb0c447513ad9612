"""Losses to check: ours, and where they are installed TRL's and verl's own, conventions translated.

TRL's and verl's functions are called as they are; only arguments are translated. `epsilon_high` is
the cap itself in TRL and an offset from 1 in verl.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from longstride.rl.conformance.checking import CannotExpress, Loss
from longstride.rl.objectives import objective_of, policy_loss, sequence_coefficients
from schemas.algorithms import Algorithm

_ALGORITHM: TypeAdapter[Any] = TypeAdapter(Algorithm)
_OPEN = 1e9
"""A bound that never binds."""


def longstride_loss(
    *,
    logp: Tensor,
    old_logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    groups: Tensor,
    update_tokens: int,
    update_sequences: int,
    algorithm: dict[str, Any],
) -> Tensor:
    """Our own objective."""
    objective = objective_of(_ALGORITHM.validate_python(algorithm))
    lengths = mask.sum(dim=1).tolist()
    if len(lengths) == update_sequences:
        coefficients = sequence_coefficients(
            lengths, groups.tolist(), objective.aggregation, objective.sample_share
        )
    elif objective.aggregation == "token":
        coefficients = [1.0 / update_tokens] * len(lengths)
    else:
        raise CannotExpress("this mean needs the lengths of the whole update")
    coefficient_B = torch.tensor(coefficients, dtype=logp.dtype)
    return policy_loss(
        objective, logp, old_logp, rollout_logp, advantages, mask, coefficient_B
    ).loss


def trl_loss(
    *,
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    update_tokens: int,
    algorithm: dict[str, Any],
    **_: Any,
) -> Tensor:
    """`GRPOTrainer._compute_loss` of TRL on given log-probabilities."""
    trainer = importlib.import_module("trl.trainer.grpo_trainer").GRPOTrainer
    kind = algorithm["kind"]
    refuse(algorithm, mask_low=None, mask_high=None, is_weight_floor=None, correction=None,
           anchor="old", aggregation="token")  # fmt: skip
    names = {"cispo": "cispo", "dapo": "dapo", "ppo_clip": "dapo", "grpo": "grpo", "gspo": "grpo"}
    if kind not in names:
        raise CannotExpress(f"no loss type for {kind}")
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x
    )
    # What the method reads of a trainer; the arithmetic is all its own.
    stub = SimpleNamespace(
        loss_type=names[kind],
        epsilon_low=algorithm.get("clip_low", 0.0),
        epsilon_high=algorithm.get("is_weight_cap", algorithm.get("clip_high")),
        importance_sampling_level="sequence" if kind == "gspo" else "token",
        beta=0.0,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=accelerator,
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *a, **k: (logp, torch.zeros_like(logp), None),
    )
    ids = torch.zeros_like(mask, dtype=torch.int64)
    loss: Tensor = trainer._compute_loss(
        stub,
        None,
        {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1],
            "completion_ids": ids,
            "completion_mask": mask.long(),
            "advantages": advantages,
            "old_per_token_logps": old_logp,
            "num_items_in_batch": torch.tensor(float(update_tokens)),
        },
    )
    return loss


def verl_loss(
    *,
    logp: Tensor,
    old_logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    update_tokens: int,
    update_sequences: int,
    algorithm: dict[str, Any],
    **_: Any,
) -> Tensor:
    """`compute_policy_loss_*` of verl; the sampler as the anchor is its bypass mode."""
    core = importlib.import_module("verl.trainer.ppo.core_algos")
    config = importlib.import_module("verl.workers.config").ActorConfig
    kind = algorithm["kind"]
    refuse(algorithm, mask_low=None, mask_high=None, correction=None, aggregation="token")
    functions = {
        "cispo": core.compute_policy_loss_cispo,
        "dapo": core.compute_policy_loss_vanilla,
        "ppo_clip": core.compute_policy_loss_vanilla,
        "grpo": core.compute_policy_loss_vanilla,
        "gspo": core.compute_policy_loss_gspo,
    }
    if kind not in functions:
        raise CannotExpress(f"no policy loss for {kind}")
    low, high = algorithm.get("clip_low", 0.2), algorithm.get("clip_high", 0.2)
    if kind == "cispo":
        floor = algorithm["is_weight_floor"]
        low = _OPEN if floor is None else 1 - floor
        high = algorithm["is_weight_cap"] - 1
    sequences = kind in ("grpo", "gspo")
    settings = config(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=_OPEN,
    )
    settings.global_batch_info.update(
        batch_num_tokens=update_tokens, global_batch_size=update_sequences, dp_size=1
    )
    loss: Tensor = functions[kind](
        old_log_prob=rollout_logp if algorithm.get("anchor") == "rollout" else old_logp,
        log_prob=logp,
        advantages=advantages[:, None].expand_as(logp),
        response_mask=mask.to(logp.dtype),
        loss_agg_mode="seq-mean-token-mean" if sequences else "token-mean",
        config=settings,
    )[0]
    return loss


def refuse(algorithm: dict[str, Any], **neutral: Any) -> None:
    """Say what a framework has no setting for.

    Raises:
        CannotExpress: A field has another than its neutral value.
    """
    for name, value in neutral.items():
        if algorithm.get(name, value) != value:
            raise CannotExpress(f"no setting for {name}")


PEERS: dict[str, Loss] = {"trl": trl_loss, "verl": verl_loss}


def installed_peers() -> dict[str, Loss]:
    """Losses of the frameworks that can be imported here, by name and version."""
    found: dict[str, Loss] = {}
    modules = {"trl": "trl.trainer.grpo_trainer", "verl": "verl.trainer.ppo.core_algos"}
    for name, loss in PEERS.items():
        try:
            importlib.import_module(modules[name])
            found[f"{name} {importlib.metadata.version(name)}"] = loss
        except (ImportError, RuntimeError) as error:
            # RuntimeError is how transformers' lazy modules report a missing package.
            if importlib.util.find_spec(name):
                print(f"{name} is installed and cannot be imported: {error}")
    return found


def target(text: str) -> Loss:
    """The function that `package.module:function` names.

    Raises:
        ValueError: It is not of that form, or not there, or not callable.
    """
    module, separator, name = text.partition(":")
    if not separator or not module or not name:
        raise ValueError(f"{text!r} is not package.module:function")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{text!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"{text!r} is a {type(found).__name__}, not a function")
    return found
