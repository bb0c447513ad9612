"""The command that starts a jailed interpreter, by bubblewrap or by unshare."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from longstride.errors import LongstrideError
from schemas.verification import SandboxConfig

Backend = Literal["bwrap", "unshare"]

INSIDE = Path(__file__).parent / "inside"
_MIB = 1 << 20
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_COMMANDS = {"bwrap": ("bwrap",), "unshare": ("unshare", "setpriv")}
_PACKAGES = {"bwrap": "bubblewrap", "unshare": "util-linux"}
_SYSTEM = ("/lib", "/lib64", "/lib32", "/bin", "/sbin")
# Ids that systemd keeps for services without a user; each jail of a root caller has its own, so
# that its limit of processes counts its own alone.
_UIDS = range(61184, 65520)
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "OMP_NUM_THREADS": "1",
}
_next_uid = itertools.count(os.getpid())


class SandboxUnavailable(LongstrideError, RuntimeError):
    """No jail can be built here, and programs are never run without one."""


@dataclass(frozen=True)
class Interpreter:
    """Where the jail's Python is, outside and inside."""

    prefix: str
    """Directory that is bound; empty when /usr, bound in any case, has it."""
    inside: str
    """The executable, as seen from inside."""


def interpreter() -> Interpreter:
    """This process's own Python, without its virtual environment."""
    base = os.path.realpath(sys.base_prefix)
    executable = os.path.realpath(sys.executable)
    if os.path.commonpath([executable, "/usr"]) == "/usr":
        return Interpreter("", executable)
    return Interpreter(base, "/python/" + os.path.relpath(executable, base))


def available(backend: Literal["auto", "bwrap", "unshare"]) -> Backend:
    """The backend to use, by what is installed; whether it works shows when a jail starts.

    Raises:
        SandboxUnavailable: It is not installed.
    """
    wanted: tuple[Backend, ...] = ("bwrap", "unshare") if backend == "auto" else (backend,)
    for name in wanted:
        if all(shutil.which(command) for command in _COMMANDS[name]):
            return name
    raise SandboxUnavailable(
        f"programs are judged in a sandbox, and no command that builds one is installed (looked "
        f"for {' and '.join(wanted)}); install the package "
        f"{' or '.join(_PACKAGES[name] for name in wanted)}"
    )


def command(backend: Backend, config: SandboxConfig) -> list[str]:
    """The command of one jail, which then waits for a request on its standard input."""
    python = interpreter()
    uid = _UIDS[next(_next_uid) % len(_UIDS)] if os.geteuid() == 0 else None
    settings = {
        "uid": uid,
        "memory": config.memory_mb * _MIB,
        "cpu": config.cpu_seconds,
        "file": config.file_mb * _MIB,
        "processes": config.processes,
        "wall": config.wall_seconds,
        "output": config.output_kb * 1024,
        "packages": "/packages" if config.site_packages else "",
    }
    argv = [python.inside, "-s", "-S", "-B", "/inside/supervisor.py", json.dumps(settings)]
    size = 4 * config.file_mb * _MIB
    build = {"bwrap": _bubblewrap, "unshare": _unshare}[backend]
    return build(_binds(python, config), _links(), _environment(python), argv, size)


def _binds(python: Interpreter, config: SandboxConfig) -> list[tuple[str, str]]:
    binds = [("/usr", "/usr"), (str(INSIDE), "/inside")]
    binds += [(path, path) for path in _SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
    if python.prefix:
        binds.append((python.prefix, "/python"))
    if config.site_packages:
        binds.append((sysconfig.get_paths()["purelib"], "/packages"))
    return binds


def _links() -> list[tuple[str, str]]:
    return [(os.readlink(path), path) for path in _SYSTEM if os.path.islink(path)]


def _environment(python: Interpreter) -> dict[str, str]:
    return _ENVIRONMENT | ({"LD_LIBRARY_PATH": "/python/lib"} if python.prefix else {})


def _bubblewrap(
    binds: list[tuple[str, str]],
    links: list[tuple[str, str]],
    environment: dict[str, str],
    argv: list[str],
    size: int,
) -> list[str]:
    found = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    found += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]
    if os.geteuid() == 0:
        # The supervisor becomes another user, which takes the right to. In a user namespace it
        # would stay root outside, whom the limit of processes does not bind.
        found += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        found += ["--cap-add", "CAP_SETPCAP"]
    else:
        found += ["--unshare-user", "--uid", str(_UIDS[0]), "--gid", str(_UIDS[0])]
    for source, target in binds:
        found += ["--ro-bind", source, target]
    for target, link in links:
        found += ["--symlink", target, link]
    found += ["--dir", "/dev"]
    for device in _DEVICES:
        found += ["--dev-bind", device, device]
    found += ["--perms", "1777", "--size", str(size), "--tmpfs", "/tmp", "--remount-ro", "/"]
    for name, value in environment.items():
        found += ["--setenv", name, value]
    return [*found, "--chdir", "/tmp", "--", *argv]


def _unshare(
    binds: list[tuple[str, str]],
    links: list[tuple[str, str]],
    environment: dict[str, str],
    argv: list[str],
    size: int,
) -> list[str]:
    found = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--net", "--ipc"]
    found += ["--uts", "--fork", "--kill-child=SIGKILL"]
    if os.geteuid() != 0:
        found += ["--user", "--map-root-user"]
    plan = {
        "binds": binds, "links": links, "devices": _DEVICES, "size": size, "argv": argv,
        "environment": environment,
    }  # fmt: skip
    executable = os.path.realpath(sys.executable)
    return [*found, executable, "-s", "-S", "-B", str(INSIDE / "enter.py"), json.dumps(plan)]
