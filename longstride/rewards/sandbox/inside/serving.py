"""Runs a program, as a whole or function by function. In the jail only."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import sys
from typing import IO, Any

import values

_MEMORY_EXIT = 97


def run_program(program: str, into: int, out: int) -> None:
    """Run a program on a pipe in place of standard input and one of output; does not return."""
    code = 1
    try:
        os.dup2(into, 0)
        os.dup2(out, 1)
        os.closerange(3, 256)
        sys.stdin = open(0, encoding="utf-8", closefd=False)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
        sys.argv = ["program.py"]
        code = _run_as_main(program)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def _run_as_main(program: str) -> int:
    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    try:
        exec(compile(program, "program.py", "exec"), main.__dict__)
    except SystemExit as error:
        if error.code is None:
            return 0
        return error.code if isinstance(error.code, int) else 1
    except MemoryError:
        return _MEMORY_EXIT
    except BaseException:
        return 1
    return 0


def serve(program: str, requests: IO[str], replies: IO[str]) -> None:
    """Run a program once, then call what it defines, as often as asked.

    A dotted name is a method, called on a fresh instance each time.
    """
    sys.stdin, sys.stdout = open(os.devnull), open(os.devnull, "w")
    sys.stderr = sys.stdout
    namespace: dict[str, Any] = {"__name__": "program", "__builtins__": builtins}
    try:
        exec(compile(program, "program.py", "exec"), namespace)
    except BaseException as error:
        _send(replies, {"failed": type(error).__name__})
        return
    _send(replies, {"ready": True})
    for line in requests:
        request = json.loads(line)
        _send(replies, _call(namespace, request))


def _call(namespace: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    args = [values.decode(value) for value in request["args"]]
    kwargs = {name: values.decode(value) for name, value in request["kwargs"].items()}
    try:
        holder, _, method = request["name"].rpartition(".")
        found = getattr(namespace[holder](), method) if holder else namespace[method]
        return {
            "value": values.encode(found(*args, **kwargs)),
            "args": [values.encode(value) for value in args],
        }
    except BaseException as error:
        kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
        return {"raised": kinds[0], "text": str(error)[:1000]}


def _send(replies: IO[str], value: dict[str, Any]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()
