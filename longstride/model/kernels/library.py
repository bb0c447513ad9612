"""Compile the kernels with the machine's C compiler, keep the result in a cache, load it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

# torch brings the OpenMP runtime that the compiled code binds to.
import torch

SWITCH = "LONGSTRIDE_KERNELS"
"""Environment variable: `off` computes everything with PyTorch operations."""
CACHE = "LONGSTRIDE_CACHE"
"""Environment variable: folder for compiled kernels; by default in the user's cache folder."""
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-march=native", "-fno-math-errno", "-fno-trapping-math")
_SOURCES = ("cpu.c", "decode.c")
_TIMEOUT_SECONDS = 120
_POINTER, _COUNT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    "rms_norm": "ppfnnpp",
    "rms_norm_backward": "ppppnnnpp",
    "gated_norm": "pppnfnnpp",
    "gated_norm_backward": "ppppnpnnnppp",
    "swiglu": "pnnp",
    "swiglu_backward": "ppnnp",
    "silu_heads": "pnnnnnnnppp",
    "silu_heads_backward": "pnnpppnnnnnpnn",
    "lightning_step": "pppfnnnpp",
    "add_norm": "ppfpfnnpp",
    "route": "pnnnppppp",
    "combine": "ppppfnnnp",
    "pack": "pnnp",
    "product": "ppnnnp",
    "packed_size": "nn",
    "trunk_step": "ppppppppp",
}
_RETURNING = ("packed_size", "trunk_step")
"""Kernels that return a count."""
_TYPES = {"p": _POINTER, "n": _COUNT, "f": _FLOAT}
log = logging.getLogger(__name__)


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the loaded kernels, or None where they are switched off or cannot be built."""
    if os.environ.get(SWITCH, "on") == "off":
        return None
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        log.warning("no C compiler found: CPU kernels are off, which costs speed and nothing else")
        return None
    folder = resources.files(__package__)
    source = b"".join(folder.joinpath(name).read_bytes() for name in _SOURCES)
    # Threads come from torch's own OpenMP runtime, already loaded: a second one would compete with
    # it. Where its symbols are not visible the kernels run on one thread.
    for openmp in (("-fopenmp",), ("-fopenmp-simd",), ()):
        try:
            return _declare(ctypes.CDLL(str(_build(source, compiler, (*_FLAGS, *openmp)))))
        except (OSError, subprocess.SubprocessError) as error:
            log.info("CPU kernels with %s: %s", openmp or "no OpenMP", error)
    log.warning("the C compiler %s cannot build the CPU kernels: they are off", compiler)
    return None


def _declare(loaded: ctypes.CDLL) -> ctypes.CDLL:
    for name, signature in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes = [_TYPES[letter] for letter in signature]
        function.restype = _COUNT if name in _RETURNING else None
    return loaded


def _build(source: bytes, compiler: str, flags: tuple[str, ...]) -> Path:
    """Return the compiled library for this source, compiler, machine and torch."""
    known = (compiler, os.stat(compiler).st_mtime_ns, flags, torch.__version__, _processor())
    name = hashlib.sha256(source + repr(known).encode()).hexdigest()[:24] + ".so"
    target = _cache() / name
    if target.is_file():
        return target
    with tempfile.TemporaryDirectory() as work:
        code, built = Path(work, "cpu.c"), Path(work, "cpu.o")
        code.write_bytes(source)
        _run(compiler, *flags, "-c", str(code), "-o", str(built))
        linked = Path(work, name)
        # Linked without OpenMP: its symbols are found in torch's runtime when loaded.
        _run(compiler, "-shared", str(built), "-lm", "-o", str(linked))
        partial = target.with_name(f".{name}.{os.getpid()}")
        shutil.copy2(linked, partial)
        os.replace(partial, target)
    return target


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_SECONDS)


def _cache() -> Path:
    """Return a writable folder for compiled code."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(os.environ.get(CACHE) or Path(base, "longstride"))
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK):
        return folder
    return Path(tempfile.mkdtemp(prefix="longstride-kernels-"))


def _processor() -> str:
    """Return what `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("flags")), platform.processor())
