"""Building the kernels: cached, and optional."""

import subprocess
import sys

from longstride.model.kernels import library as module

CODE = """
import torch
from longstride.model.kernels.library import library
from longstride.model.kernels.operations import usable
print(library() is not None, usable(torch.ones(1)))
"""


def run(**environment):
    import os

    return subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_a_second_process_finds_the_compiled_kernels(tmp_path):
    assert run(LONGSTRIDE_CACHE=str(tmp_path)).stdout.split() == ["True", "True"]
    (built,) = tmp_path.glob("*.so")
    stamp = built.stat().st_mtime_ns
    assert run(LONGSTRIDE_CACHE=str(tmp_path)).stdout.split() == ["True", "True"]
    assert built.stat().st_mtime_ns == stamp
    assert len(list(tmp_path.iterdir())) == 1


def test_the_switch_turns_them_off(tmp_path):
    result = run(LONGSTRIDE_KERNELS="off", LONGSTRIDE_CACHE=str(tmp_path))
    assert result.stdout.split() == ["False", "False"]
    assert not list(tmp_path.iterdir())


def test_a_machine_without_a_compiler_says_so_and_goes_on(tmp_path):
    result = run(CC="no-such-compiler", LONGSTRIDE_CACHE=str(tmp_path))
    assert result.stdout.split() == ["False", "False"]
    assert "no C compiler found" in result.stderr


def test_a_compiler_that_fails_turns_them_off(tmp_path):
    compiler = tmp_path / "broken-cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    result = run(CC=str(compiler), LONGSTRIDE_CACHE=str(tmp_path / "cache"))
    assert result.stdout.split() == ["False", "False"]
    assert "cannot build" in result.stderr


def test_every_declared_kernel_exists():
    loaded = module.library()
    assert loaded is None or all(hasattr(loaded, name) for name in module._SIGNATURES)
