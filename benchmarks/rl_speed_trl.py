"""TRL's side of `rl_speed.py`: GRPOTrainer with CISPO on a CPU, in a process of its own.

Runs in an environment that has TRL and not Longstride. Reads a case from a file, prints one line
of JSON. `epsilon_high` is TRL's name of the absolute cap on the weight, so it takes ours as it is.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

PAD, END = 0, 1


class Clock(TrainerCallback):  # type: ignore[misc]
    """CPU seconds (all threads of the process) at the end of every update."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note the time."""
        self.ends.append(time.process_time())


def main() -> None:
    """Train for the batches of the case and print what they cost."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    case = json.loads((folder / "case.json").read_text())
    model, tokenizer = _model(case, folder), _tokenizer(case["settings"]["vocab_size"])
    batches = case["batches"] + 1
    imported = _peak()
    with tempfile.TemporaryDirectory() as out:
        clock, sampling = Clock(), [0.0] * batches
        trainer = _trainer(case, model, tokenizer, out, clock)
        generate = trainer._generate
        calls = 0

        def timed(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            begun = time.process_time()
            result = generate(*arguments, **named)
            sampling[calls] = time.process_time() - begun
            calls += 1
            return result

        trainer._generate = timed
        trainer.train()
    if calls != batches or len(clock.ends) != batches * case["updates"]:
        raise SystemExit(f"TRL sampled {calls} batches in {len(clock.ends)} updates")
    ends = clock.ends[case["updates"] - 1 :: case["updates"]]
    whole = [after - before for before, after in itertools.pairwise(ends)]
    print(
        json.dumps(
            {
                "sampling_seconds": sampling[1:],
                "update_seconds": [w - s for w, s in zip(whole, sampling[1:], strict=True)],
                "sampled_tokens": case["prompts_per_batch"] * case["group"] * case["answer"],
                "peak_mib": _peak(),
                "imported_mib": imported,
            }
        )
    )


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _model(case: dict[str, Any], folder: Path) -> Any:
    settings = dict(case["settings"])
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    config.pad_token_id, config.eos_token_id, config.bos_token_id = PAD, END, END
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # All weights come from our side: transformers' own leaves the padding row of the embedding at
    # zero, which overflows MiniMax's backward pass as soon as that token is sampled.
    missing, unexpected = model.load_state_dict(
        load_file(folder / "model.safetensors"), strict=False
    )
    if unexpected or any("decay" not in name and "slope" not in name for name in missing):
        raise SystemExit(f"the two classes differ: missing {missing}, unexpected {unexpected}")
    return model


def _tokenizer(size: int) -> Any:
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(size)}, unk_token=f"t{END}"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=f"t{PAD}", eos_token=f"t{END}", padding_side="left"
    )


def _reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [sum(token % 2 for token in ids) / len(ids) for ids in completion_ids]


def _trainer(case: dict[str, Any], model: Any, tokenizer: Any, out: str, clock: Clock) -> Any:
    rows = case["prompts_per_batch"] * case["group"]
    prompts = [" ".join(f"t{token}" for token in prompt) for prompt in case["prompts"]]
    arguments = GRPOConfig(
        output_dir=out,
        use_cpu=True,
        bf16=False,
        loss_type="cispo",
        epsilon_high=case["weight_cap"],
        beta=0.0,
        num_generations=case["group"],
        per_device_train_batch_size=rows // case["updates"],
        steps_per_generation=case["updates"],
        gradient_accumulation_steps=1,
        num_iterations=1,
        max_steps=(case["batches"] + 1) * case["updates"],
        max_completion_length=case["answer"],
        generation_kwargs={"min_new_tokens": case["answer"]},
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        learning_rate=case["learning_rate"],
        lr_scheduler_type="constant",
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_epsilon=1e-15,
        weight_decay=0.1,
        max_grad_norm=1.0,
        gradient_checkpointing=False,
        logging_steps=case["updates"],
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=_reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        callbacks=[clock],
    )


if __name__ == "__main__":
    main()
