"""A vLLM server as a process of its own: started, watched, and always stopped."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longstride.errors import GeneratorError, UsageError
from longstride.rollout import vllm_guard
from longstride.rollout.vllm_http import Deadline, ServerConnection
from schemas.generators import VllmGeneratorConfig

PYTHON_VARIABLE = "LONGSTRIDE_VLLM_PYTHON"
DEFAULT_PYTHON = Path(".venv-vllm", "bin", "python")
_PREFILL_TOKENS = 4096
# Our own search path and environment, and the trainer's place among its ranks: vLLM has its own.
_NOT_INHERITED = (
    "PYTHONPATH", "VIRTUAL_ENV", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
_TAIL_LINES = 15
_TAIL_BYTES = 1 << 23
_CAUSES = 3
_ERROR = re.compile(r"(?:ERROR .*\] |^)(\w+(?:Error|Exception): .+)")
_BETWEEN_LOOKS_SECONDS = 0.5
_NOTICE_SECONDS = 3.0


@dataclass(frozen=True)
class ServerOptions:
    """What a server is started with."""

    max_model_len: int
    """Longest prompt and answer together, in tokens."""
    max_batch: int
    """Sequences that it decodes together."""
    seed: int
    """Seed of the server; every request carries its own."""
    on_cpu: bool
    """Whether the server computes on a CPU."""


class VllmServer:
    """One running server; `stop` ends all its processes."""

    def __init__(
        self, config: VllmGeneratorConfig, options: ServerOptions, model: Path, log: Path
    ) -> None:
        """Start the processes; `wait_until_up` waits for them.

        Args:
            config: the recipe's choices.
            options: what follows from the rest of the recipe.
            model: folder with the configuration and the first weights.
            log: file that receives the output of all processes.

        Raises:
            UsageError: there is no interpreter with vLLM where the recipe says.
        """
        python = interpreter(config)
        self.log = log
        self._config = config
        port = _free_port()
        command = [str(python), *server_arguments(config, options, model, port)]
        log.parent.mkdir(parents=True, exist_ok=True)
        guarded = [sys.executable, "-I", vllm_guard.__file__, str(os.getpid()), *command]
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                guarded,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=server_environment(config),
            )
        self.connection = ServerConnection(f"http://127.0.0.1:{port}", self.circumstances)

    def wait_until_up(self) -> None:
        """Return once the server answers.

        Raises:
            GeneratorError: it ended instead, or took too long.
        """
        deadline = Deadline(
            self._config.start_seconds,
            f"the vLLM server of process {self._process.pid} to come up",
            "rollout.generator.start_seconds",
        )
        while True:
            if self._process.poll() is not None:
                raise GeneratorError(f"the vLLM server did not come up{self.circumstances()}")
            try:
                patience = min(5.0, deadline.remaining())
            except TimeoutError as error:
                raise GeneratorError(deadline.message() + self.circumstances()) from error
            if self.connection.healthy(patience):
                return
            time.sleep(_BETWEEN_LOOKS_SECONDS)

    def circumstances(self) -> str:
        """Say whether the server has ended, and how its log ends."""
        # A broken connection is noticed sooner than the end of the process that broke it.
        end = time.monotonic() + _NOTICE_SECONDS
        while self._process.poll() is None and time.monotonic() < end:
            if self.connection.healthy(1.0):
                break
            time.sleep(_BETWEEN_LOOKS_SECONDS)
        code = self._process.poll()
        state = "is still running" if code is None else f"has ended with exit code {code}"
        return f"\nThe server {state}. {self.log} ends:\n{_tail(self.log)}"

    def stop(self) -> None:
        """End every process of the server and wait for it."""
        self._process.terminate()
        try:
            self._process.wait(vllm_guard.GRACE_SECONDS + 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def interpreter(config: VllmGeneratorConfig) -> Path:
    """Return the Python that has vLLM.

    Raises:
        UsageError: it does not exist.
    """
    given = config.python or os.environ.get(PYTHON_VARIABLE)
    # Tasks run in folders of their own, so the environment that runs this is the other landmark.
    places = [Path(given)] if given else [DEFAULT_PYTHON, Path(sys.prefix).parent / DEFAULT_PYTHON]
    for python in places:
        if python.is_file():
            # Links stay: a virtual environment is found by the path of its interpreter.
            return python.absolute()
    looked = " or ".join(dict.fromkeys(str(place.absolute()) for place in places))
    raise UsageError(
        f"there is no Python with vLLM at {looked}; run `make setup-vllm`, or name one by "
        f"rollout.generator.python or {PYTHON_VARIABLE}"
    )


def server_arguments(
    config: VllmGeneratorConfig, options: ServerOptions, model: Path, port: int
) -> Sequence[str]:
    """Return the arguments of the interpreter.

    `vllm serve` fails in the CPU build, which has another name; the module works in both.
    """
    flags = {
        "--model": model,
        "--served-model-name": "policy",
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": config.dtype,
        "--max-model-len": options.max_model_len,
        "--max-num-seqs": options.max_batch,
        "--tensor-parallel-size": config.tensor_parallel,
        "--gpu-memory-utilization": config.gpu_memory_share,
        "--seed": options.seed,
        # Log-probabilities after temperature and nucleus, not before.
        "--logprobs-mode": "processed_logprobs",
        # No sampling defaults from the model's folder.
        "--generation-config": "vllm",
    }
    if options.on_cpu:
        # A prompt that is read in parts makes the CPU build of 0.32 fail: it then sets back the
        # generator of a seeded request, which torch cannot do on a CPU.
        flags["--max-num-batched-tokens"] = max(_PREFILL_TOKENS, options.max_model_len)
    switches = ["--skip-tokenizer-init", "--enforce-eager", "--disable-uvicorn-access-log"]
    return [
        "-m",
        "vllm.entrypoints.openai.api_server",
        *(text for name, value in flags.items() for text in (name, str(value))),
        *switches,
        *(["--no-enable-chunked-prefill"] if options.on_cpu else []),
        *config.arguments,
    ]


def server_environment(config: VllmGeneratorConfig) -> dict[str, str]:
    """Return this process's environment with what vLLM needs; what the user has set stays."""
    environment = {name: v for name, v in os.environ.items() if name not in _NOT_INHERITED}
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
        # Threads are not tied to cores: the task's thread count holds, and the trainer, which
        # waits while vLLM samples, may use the same cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    # The development mode has the two calls that a weight update is made of.
    return {**defaults, **environment, "VLLM_SERVER_DEV_MODE": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tail(path: Path) -> str:
    """Return the errors that a log names first, which are the causes, and its last lines.

    One failure of an engine is followed by thousands of lines of its consequences.
    """
    with path.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - _TAIL_BYTES))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    found = (_ERROR.search(line) for line in lines[:-_TAIL_LINES])
    causes = list(dict.fromkeys(match.group(1) for match in found if match))[:_CAUSES]
    shown = [*causes, "..."] if causes else []
    return "\n".join(f"  {line}" for line in [*shown, *lines[-_TAIL_LINES:]]) or "  (empty)"
