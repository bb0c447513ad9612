"""Load a checkpoint in a fresh process and let it answer one prompt, under a deadline.

A file whose tensors are all sound may still not load where the next stage runs. Run as a program,
this module is that process: `python -m longstride.quality.answering CHECKPOINT`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from longstride.errors import GateCouldNotRun
from longstride.quality.frame import RowFacts

TOKENS: Final = 8
_PROMPT: Final = 4
_UNUSABLE: Final = 3
"""Exit code of a process that found the checkpoint unusable; any other failure is ours."""


class Answering:
    """A process that loads a checkpoint while its parent goes on measuring."""

    def __init__(self, checkpoint: Path, seconds: float) -> None:
        """Start it; it has `seconds` from now on."""
        self.problem = ""
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "longstride.quality.answering", str(checkpoint)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def facts(self) -> RowFacts:
        """Whether the checkpoint answered, and how many tokens.

        Raises:
            GateCouldNotRun: The deadline passed, or the process itself failed.
        """
        try:
            left = max(0.0, self._deadline - time.monotonic())
            out, complaint = self._process.communicate(timeout=left)
        except subprocess.TimeoutExpired as error:
            raise GateCouldNotRun(
                f"a fresh process did not load the checkpoint and answer within "
                f"{self._seconds:g} s; the machine is too slow, or loading hangs"
            ) from error
        code = self._process.returncode
        if code == _UNUSABLE:
            self.problem = complaint.strip().splitlines()[-1]
            return {"answers": False}
        if code != 0:
            last = (complaint.strip().splitlines() or ["it said nothing"])[-1]
            raise GateCouldNotRun(
                f"the process that loads the checkpoint ended with code {code}: {last}"
            )
        return {"answers": json.loads(out)["tokens"] == TOKENS}


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


def main() -> int:
    """Answer with the checkpoint named on the command line."""
    from longstride.errors import CheckpointError

    try:
        tokens = answer(Path(sys.argv[1]))
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return _UNUSABLE
    print(json.dumps({"tokens": len(tokens)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
