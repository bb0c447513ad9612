"""The server's processes: started, watched, and gone afterwards, whatever happens."""

import itertools
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from generators_under_test import vllm_generator
from sampling_models import dense_policy, plain

from longstride.errors import GeneratorError, UsageError
from longstride.rollout import vllm_guard
from longstride.rollout.vllm_server import (
    PYTHON_VARIABLE,
    ServerOptions,
    VllmServer,
    interpreter,
    server_arguments,
    server_environment,
)
from schemas.generators import VllmGeneratorConfig

DOUBLE = Path(__file__).with_name("fake_vllm.py")
OPTIONS = ServerOptions(max_model_len=64, max_batch=8, seed=0, on_cpu=True)


def script(path: Path, text: str) -> str:
    """An executable that stands in for the Python of vLLM's environment."""
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def double(folder: Path) -> str:
    """A Python that runs the double in place of vLLM."""
    paths = os.pathsep.join([str(DOUBLE.parents[2]), *filter(None, sys.path)])
    return script(folder / "python", f'PYTHONPATH="{paths}" exec "{sys.executable}" {DOUBLE} "$@"')


def stub(folder: Path) -> str:
    """A Python that comes up at once, answers nothing, and dies of the first request."""
    (folder / "stub.py").write_text(
        "import http.server, os, sys\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "    def do_POST(self):\n"
        "        print('out of memory', flush=True)\n"
        "        os._exit(5)\n"
        "port = int(sys.argv[sys.argv.index('--port') + 1])\n"
        "http.server.HTTPServer(('127.0.0.1', port), Handler).serve_forever()\n"
    )
    return script(folder / "python", f'exec "{sys.executable}" -I {folder}/stub.py "$@"')


def group_members(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def wait_until_gone(group: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while group_members(group):
        assert time.monotonic() < end, f"processes {group_members(group)} are left"
        time.sleep(0.05)


def test_a_server_lives_from_the_first_sync_to_the_end_of_the_context(tmp_path):
    log = tmp_path / "outputs" / "vllm.log"
    with vllm_generator(log, python=double(tmp_path)) as generator:
        assert not log.exists()
        generator.sync(dense_policy(), 0)
        generator.sync(dense_policy(1), 1)
        samples = generator.generate([[1, 2]], 3, plain(5), 0)[0]
        assert [sample.policy_version for sample in samples] == [1, 1, 1]
        group, weights = generator._server._process.pid, generator._weights.root
        assert group_members(group) and weights.is_dir()
    assert group_members(group) == [] and not weights.exists()
    assert "fake vLLM starts" in log.read_text()


def test_a_server_that_dies_of_a_request_is_named_as_dead_and_leaves_nothing(tmp_path):
    with vllm_generator(tmp_path / "vllm.log", python=stub(tmp_path)) as generator:
        with pytest.raises(
            GeneratorError,
            match=r"broke while waiting for vLLM to score the probe [^\n]*\n"
            r"The server has ended with exit code 5\. .*ends:\n(  .*\n)*  out of memory",
        ):
            generator.sync(dense_policy(), 0)
        group, weights = generator._server._process.pid, generator._weights.root
    assert group_members(group) == [] and not weights.exists()


def test_a_server_that_dies_at_the_start_shows_the_end_of_its_log(tmp_path):
    python = script(tmp_path / "python", "echo first; echo 'no space on device'; exit 3")
    with vllm_generator(tmp_path / "vllm.log", python=python) as generator:
        with pytest.raises(
            GeneratorError,
            match=r"did not come up\nThe server has ended with exit code 3\. .*vllm\.log ends:\n"
            r"  first\n  no space on device",
        ):
            generator.sync(dense_policy(), 0)
        with pytest.raises(GeneratorError, match="no checked weights"):
            generator.generate([[1]], 1, plain(), 0)


def test_a_server_that_never_comes_up_ends_at_the_limit_and_leaves_nothing(tmp_path):
    python = script(tmp_path / "python", "echo loading; sleep 60 & sleep 60")
    with vllm_generator(tmp_path / "vllm.log", python=python, start_seconds=1.0) as generator:
        with pytest.raises(
            GeneratorError,
            match=r"waited 1 s for the vLLM server of process \d+ to come up.*start_seconds\n"
            r"The server is still running\. .*\n  loading",
        ):
            generator.sync(dense_policy(), 0)
        group = generator._server._process.pid
        assert len(group_members(group)) >= 3
    assert group_members(group) == []


def test_a_killed_trainer_leaves_no_server(tmp_path):
    """The trainer gets SIGKILL and can tidy nothing; the guard notices."""
    source = (
        "import sys, time; from pathlib import Path\n"
        "from longstride.rollout.vllm_server import ServerOptions, VllmServer\n"
        "from schemas.generators import VllmGeneratorConfig\n"
        "here = Path(sys.argv[1])\n"
        "config = VllmGeneratorConfig(python=sys.argv[2])\n"
        "options = ServerOptions(64, 8, 0, True)\n"
        "server = VllmServer(config, options, here / 'model', here / 'vllm.log')\n"
        "server.wait_until_up()\n"
        "print(server._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path), stub(tmp_path)],
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(DOUBLE.parents[2])},
    )  # fmt: skip
    with trainer:
        group = int(trainer.stdout.readline())
        assert len(group_members(group)) >= 2
        trainer.kill()
    wait_until_gone(group, 8.0)


@pytest.mark.slow
def test_a_server_that_ignores_the_polite_signal_is_killed(tmp_path):
    python = script(tmp_path / "python", "trap '' TERM; while true; do sleep 1; done")
    config = VllmGeneratorConfig(python=python)
    server = VllmServer(config, OPTIONS, tmp_path, tmp_path / "vllm.log")
    time.sleep(0.5)
    group = server._process.pid
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began >= vllm_guard.GRACE_SECONDS
    wait_until_gone(group, 2.0)


def test_a_missing_environment_is_a_usage_error_that_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "ours" / ".venv"))
    places = [str(tmp_path / name / ".venv-vllm/bin/python") for name in ("", "ours")]
    message = " or ".join(map(re.escape, places)) + ".*make setup-vllm"
    with pytest.raises(UsageError, match=message):
        interpreter(VllmGeneratorConfig())


def test_the_environment_beside_our_own_is_found_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / ".venv-vllm" / "bin").mkdir(parents=True)
    python = script(tmp_path / ".venv-vllm" / "bin" / "python", "")
    (tmp_path / "task").mkdir()
    monkeypatch.chdir(tmp_path / "task")
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert str(interpreter(VllmGeneratorConfig())) == python


def test_the_recipe_goes_before_the_environment_and_that_before_the_default(tmp_path, monkeypatch):
    first, second = script(tmp_path / "first", ""), script(tmp_path / "second", "")
    monkeypatch.setenv(PYTHON_VARIABLE, second)
    assert str(interpreter(VllmGeneratorConfig(python=first))) == first
    assert str(interpreter(VllmGeneratorConfig())) == second


def test_the_server_reports_logprobs_after_temperature_and_takes_the_users_arguments(tmp_path):
    config = VllmGeneratorConfig(dtype="bfloat16", arguments=["--swap-space", "0"])
    arguments = list(server_arguments(config, OPTIONS, tmp_path, 4321))
    pairs = dict(itertools.pairwise(arguments))
    assert arguments[:2] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert pairs["--logprobs-mode"] == "processed_logprobs"
    assert (pairs["--model"], pairs["--port"]) == (str(tmp_path), "4321")
    assert (pairs["--max-model-len"], pairs["--max-num-seqs"]) == ("64", "8")
    assert pairs["--dtype"] == "bfloat16" and arguments[-2:] == ["--swap-space", "0"]


def test_prompts_are_read_whole_on_a_cpu_and_in_parts_on_a_gpu(tmp_path):
    long = replace(OPTIONS, max_model_len=10_000)
    arguments = list(server_arguments(VllmGeneratorConfig(), long, tmp_path, 1))
    assert "--no-enable-chunked-prefill" in arguments
    assert arguments[arguments.index("--max-num-batched-tokens") + 1] == "10000"
    on_gpu = server_arguments(VllmGeneratorConfig(), replace(long, on_cpu=False), tmp_path, 1)
    assert not {"--no-enable-chunked-prefill", "--max-num-batched-tokens"} & set(on_gpu)


def test_the_cause_is_shown_though_its_consequences_fill_the_log(tmp_path):
    python = script(
        tmp_path / "python",
        "echo '(Worker pid=1) ERROR 11-30 [x.py:9] RuntimeError: no such kernel'\n"
        "for i in $(seq 400); do echo '(API pid=2) ERROR 11-30 [y.py:5]   File z'; done\nexit 1",
    )
    with (
        vllm_generator(tmp_path / "vllm.log", python=python) as generator,
        pytest.raises(GeneratorError, match=r"ends:\n  RuntimeError: no such kernel\n  \.\.\.\n"),
    ):
        generator.sync(dense_policy(), 0)


def test_the_servers_environment_is_its_own_but_keeps_what_the_user_set(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-3")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")
    environment = server_environment(VllmGeneratorConfig(kv_cache_gib=7))
    assert not {"PYTHONPATH", "WORLD_SIZE"} & set(environment)
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
