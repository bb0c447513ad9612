"""Load a checkpoint in a fresh process and let it answer one prompt, under a deadline.

A file whose tensors are all sound may still not load where the next stage runs.
"""

from __future__ import annotations

import importlib
import multiprocessing
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from longstride.errors import GateCouldNotRun
from longstride.quality.frame import RowFacts

TOKENS: Final = 8
_PROMPT: Final = 4


class Answering:
    """A process that loads a checkpoint while its parent goes on measuring.

    It is a fork of this process, which has imported torch (the embedded executor does so once a
    run) but read nothing of the checkpoint.
    """

    def __init__(self, checkpoint: Path, seconds: float) -> None:
        """Start it; it has `seconds` from now on."""
        self.problem = ""
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        # Imported before the fork, so that its cost is paid once where gates share a process.
        importlib.import_module("longstride.model.checkpoints")
        context: Any = multiprocessing.get_context("fork")
        self._answers, out = context.Pipe(duplex=False)
        self._process = context.Process(target=_report, args=(checkpoint, out), daemon=True)
        self._process.start()
        out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._process.kill()
        self._process.join()
        self._answers.close()

    def facts(self) -> RowFacts:
        """Whether the checkpoint answered with all the tokens that were asked for.

        Raises:
            GateCouldNotRun: The deadline passed, or the process died.
        """
        if not self._answers.poll(max(0.0, self._deadline - time.monotonic())):
            raise GateCouldNotRun(
                f"a fresh process did not load the checkpoint and answer within "
                f"{self._seconds:g} s; the machine is too slow, or loading hangs"
            )
        try:
            tokens, self.problem = self._answers.recv()
        except EOFError as error:
            self._process.join()
            raise GateCouldNotRun(
                "the process that loads the checkpoint died with code "
                f"{self._process.exitcode} before it answered; look for memory limits"
            ) from error
        return {"answers": tokens == TOKENS}


def _report(checkpoint: Path, out: Any) -> None:
    """Body of the process: send (tokens, problem)."""
    import torch

    from longstride.errors import CheckpointError

    # A fork must not use the threads that its parent may have had.
    torch.set_num_threads(1)
    try:
        out.send((len(answer(checkpoint)), ""))
    except CheckpointError as error:
        out.send((0, str(error)))


def answer(checkpoint: Path) -> list[int]:
    """Load a checkpoint and continue a fixed prompt greedily by `TOKENS` tokens.

    Raises:
        CheckpointError: It does not load, or its logits are not finite.
    """
    import torch

    from longstride.errors import CheckpointError
    from longstride.model.checkpoints import load_model

    model = load_model(checkpoint).eval()
    ids = [index % model.config.vocab_size for index in range(_PROMPT)]
    with torch.inference_mode():
        for _ in range(TOKENS):
            hidden_D = model(torch.tensor([ids])).hidden_BTD[0, -1]
            logits_V = model.head(hidden_D)
            if not bool(torch.isfinite(logits_V).all()):
                raise CheckpointError(f"{checkpoint} gives logits that are not finite")
            ids.append(int(logits_V.argmax()))
    return ids[_PROMPT:]
