"""Small real artifacts for tests of the training room."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from safetensors.numpy import save_file

from longstride.store.artifacts import publish
from longstride.store.files import write_jsonl
from longstride.tokens.tokenizer import Tokenizer
from schemas.model import ModelConfig, TokenizerConfig
from schemas.rows import PackedRow, Rollout

MODEL = ModelConfig(
    vocab_size=64, hidden_size=16, block_types=["lightning", "softmax"], num_heads=2,
    num_kv_heads=1, head_dim=8, rotary_dim=4, num_experts=2, experts_per_token=1,
    expert_hidden_size=16, init_std=0.1,
)  # fmt: skip


def write_packed(directory, rows=24, window=16, vocabulary=64, seed=0):
    """Packed rows of a learnable pattern: every token is the one before it plus one."""
    directory.mkdir(parents=True, exist_ok=True)
    start = np.random.default_rng(seed).integers(8, vocabulary, size=(rows, 1))
    tokens = (start + np.arange(window)) % (vocabulary - 8) + 8
    mask = np.ones((rows, window), dtype=np.uint8)
    mask[:, 0] = 0
    save_file(
        {
            "tokens_NT": tokens.astype(np.int32),
            "segments_NT": np.zeros((rows, window), dtype=np.int32),
            "positions_NT": np.tile(np.arange(window, dtype=np.int32), (rows, 1)),
            "loss_mask_NT": mask,
        },
        directory / "packed.safetensors",
    )
    write_jsonl(
        directory / "rows.jsonl",
        (
            PackedRow(
                id=f"row-{i}", window=window, documents=["d"], longest_document_tokens=window,
                domain_tokens={"stem": window}, target_tokens=window - 1,
            )
            for i in range(rows)
        ),
    )  # fmt: skip
    publish(directory, "packed", "pretrain")
    return directory


def rollout(tokens=(1, 2, 3), prompt=(9, 8), logprobs=None, **values):
    """A rollout with sensible defaults."""
    given = {
        "prompt_id": "p", "group": 0, "sample": 0, "batch": 0, "prompt_tokens": list(prompt),
        "tokens": list(tokens), "logprobs": logprobs or [-1.0] * len(tokens), "text": "",
        "finish_reason": "stop", "reward": 1.0, "correct": True, "window": 8,
    }  # fmt: skip
    return Rollout(**(given | values))


@cache
def tokenizer_directory():
    """A small real tokenizer, trained once."""
    texts = ["State the final answer to the following arithmetic problem: 1 + 2 - 3 = 0 "] * 40
    directory = Path(mkdtemp())
    Tokenizer.train(texts, TokenizerConfig(vocab_size=300), directory)
    return directory


def trained_tokenizer():
    """The same, loaded."""
    return Tokenizer.load(tokenizer_directory())
