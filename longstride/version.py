"""What exactly ran: the digest of this code, and the versions around it."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from importlib import metadata, resources
from pathlib import Path

__version__ = "0.1.0"

SOURCE_PACKAGES = ("schemas", "longstride", "components")
REPORTED = (
    "kfp", "torch", "pydantic", "tokenizers", "safetensors", "great-expectations",
    "reasoning-gym", "numpy", "pandas", "s3fs",
)  # fmt: skip


@cache
def code_digest() -> str:
    """Digest of every source file and suite, and of the versions, that can change a result.

    Thin component bodies make a cache blind to library changes; this digest is a parameter of
    every task, so that a changed library is a changed input.
    """
    digest = hashlib.sha256(repr(sorted(versions().items())).encode())
    for package in SOURCE_PACKAGES:
        root = Path(str(resources.files(package)))
        for path in sorted(p for p in root.rglob("*") if p.suffix in {".py", ".yaml"}):
            digest.update(f"{package}/{path.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return "sha256:" + digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, where installed."""
    found = {"python": platform.python_version(), "longstride": __version__}
    for name in REPORTED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str]:
    """Cores, memory and processor of this machine."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{pages / 2**30:.1f} GiB",
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except FileNotFoundError:
        pass
    return platform.processor() or platform.machine()
