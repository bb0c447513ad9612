"""The first program in a jail: drops its rights, sets its limits, and waits for one request.

Nothing secret is ever in this process or its jail: expected outputs stay outside, and tests are in
a jail of their own. So it may be subverted by the program that it runs; that program can then only
say what it could have said anyhow. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from typing import IO, Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import harness
import serving

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_CAPABILITIES = 64
MEMORY_EXIT = 97
_CHUNK = 1 << 16
_LOOK_SECONDS = 0.02


def main() -> None:
    """Drop, limit, say hello, serve one request, end."""
    settings = json.loads(sys.argv[1])
    _drop(settings["uid"])
    _limit(settings)
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    if settings["packages"]:
        sys.path.append(settings["packages"])
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    _send(replies, {"hello": os.getuid()})
    line = requests.readline()
    if not line:
        return
    request = json.loads(line)
    match request["mode"]:
        case "run":
            run_cases(request, settings, replies)
        case "serve":
            serving.serve(request["program"], requests, replies)
        case "test":
            harness.test(request, requests, replies)
        case "commands":
            run_commands(request, settings, replies)


def run_cases(request: dict[str, Any], settings: dict[str, Any], replies: IO[str]) -> None:
    """Run a program once on each input; say what became of each run and what it printed."""
    for number, text in enumerate(request["inputs"]):
        outcome = _run_case(request["program"], text.encode(), settings)
        _clear_away()
        _send(replies, {"case": number, **outcome})
        if outcome["ended"] == "timeout":
            return


def _run_case(program: str, data: bytes, settings: dict[str, Any]) -> dict[str, Any]:
    into, feed = os.pipe()
    drain, out = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(feed)
        os.close(drain)
        serving.run_program(program, into, out)
    os.close(into)
    os.close(out)
    due = time.monotonic() + settings["wall"]
    ended, output, status = _converse(feed, drain, data, child, due, settings["output"])
    if status is None:
        status = _wait(child, due)
    if ended or status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ended, code = ended or "timeout", -signal.SIGKILL
    else:
        ended, code = how_it_ended(status)
    os.close(drain)
    return {"ended": ended, "code": code, "output": output.decode("utf-8", "replace")}


def how_it_ended(status: int) -> tuple[str, int]:
    """(kind of end, exit code or minus the signal) of a wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code == MEMORY_EXIT:
        return "memory", code
    return ("timeout" if code == -signal.SIGXCPU else "exited"), code


def _wait(child: int, due: float) -> int | None:
    """The wait status of a child that ends in time."""
    while time.monotonic() < due:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.001)
    return None


def _converse(
    feed: int, drain: int, data: bytes, child: int, due: float, most: int
) -> tuple[str, bytes, int | None]:
    """Write the input, read the output until its end, the child's end, or a limit.

    Returns:
        "timeout" or "output" when the child must be killed, its output, and its wait status when
        it has ended although its output, which a process it left behind may hold, has not.
    """
    os.set_blocking(feed, False)
    os.set_blocking(drain, False)
    output = bytearray()
    writing, status = True, None
    while True:
        if time.monotonic() >= due:
            return _finish(feed if writing else None, "timeout", output, None)
        if writing and not data:
            os.close(feed)
            writing = False
        descriptors = [feed] if writing else []
        readable, writable, _ = select.select([drain], descriptors, [], _LOOK_SECONDS)
        if not readable and not writable:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return _finish(feed if writing else None, "", output, status)
        if writable:
            try:
                data = data[os.write(feed, data[:_CHUNK]) :]
            except BlockingIOError:
                pass
            except OSError:
                data = b""  # it closed its input: what is left is not for it
        if readable:
            chunk = os.read(drain, _CHUNK)
            if not chunk:
                return _finish(feed if writing else None, "", output, None)
            output += chunk
            if len(output) > most:
                return _finish(feed if writing else None, "output", output[:most], None)


def _finish(
    feed: int | None, ended: str, output: bytearray, status: int | None
) -> tuple[str, bytes, int | None]:
    if feed is not None:
        os.close(feed)
    return ended, bytes(output), status


def run_commands(request: dict[str, Any], settings: dict[str, Any], replies: IO[str]) -> None:
    """Run each command in a fresh copy of the files; say how it ended."""
    for number, run in enumerate(request["runs"]):
        directory = f"/tmp/run{number}"
        for path, text in {**request["files"], **run["files"]}.items():
            target = os.path.join(directory, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w", encoding="utf-8", newline="") as file:
                file.write(text)
        _send(replies, {"run": number, **_run_command(run["argv"], directory, settings)})
        _clear_away()
        _remove(directory)


def _run_command(argv: list[str], directory: str, settings: dict[str, Any]) -> dict[str, Any]:
    child = os.fork()
    if child == 0:
        try:
            os.chdir(directory)
            path = [settings["packages"]] if settings["packages"] else []
            environment = {
                "PATH": os.path.dirname(sys.executable) + ":/usr/bin:/bin", "HOME": "/tmp",
                "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONNOUSERSITE": "1", "PYTHONPATH": ":".join([directory, *path]),
            }  # fmt: skip
            if argv[0] == "python":
                os.execve(sys.executable, [sys.executable, "-S", *argv[1:]], environment)
            os.execvpe(argv[0], argv, environment)
        finally:
            os._exit(127)
    due = time.monotonic() + settings["wall"]
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            ended, code = how_it_ended(status)
            return {"ended": ended, "code": code}
        if time.monotonic() > due:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"ended": "timeout", "code": -signal.SIGKILL}
        time.sleep(0.005)


def _remove(directory: str) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def _clear_away() -> None:
    """End whatever a run left behind, so that it cannot meddle with the next."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _send(replies: IO[str], value: dict[str, Any]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()


def _drop(uid: int | None) -> None:
    """Become nobody in particular, for good."""
    libc = ctypes.CDLL(None)
    for capability in range(_CAPABILITIES):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _drop_capabilities(libc)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    # A change of the user id clears it.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Empty the three sets; root of a user namespace of its own has them all."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if libc.capset(header, nothing) != 0:
        raise OSError("the capabilities cannot be dropped")


def _limit(settings: dict[str, Any]) -> None:
    for name, value in (
        (resource.RLIMIT_AS, settings["memory"]),
        (resource.RLIMIT_CPU, settings["cpu"]),
        (resource.RLIMIT_FSIZE, settings["file"]),
        (resource.RLIMIT_NPROC, settings["processes"]),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(name, (value, value))


if __name__ == "__main__":
    main()
