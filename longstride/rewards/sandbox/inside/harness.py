"""Runs unit tests against a program that is in another jail. In the jail only.

What the tests call is a stand-in that asks the other jail and gives back plain data. So the program
sees arguments, one call at a time, and neither tests nor expected values nor this process.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import sys
from typing import IO, Any

import values


class _Elsewhere:
    """A function, or a method of a class, of the program under test."""

    def __init__(self, name: str, requests: IO[str], replies: IO[str]) -> None:
        self.__name__ = name.rpartition(".")[2]
        self._name = name
        self._requests, self._replies = requests, replies

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _send(
            self._replies,
            {
                "call": self._name,
                "args": [values.encode(value) for value in args],
                "kwargs": {name: values.encode(value) for name, value in kwargs.items()},
            },
        )
        answer = json.loads(self._requests.readline())
        if "raised" in answer:
            raise _exception(answer["raised"], answer["text"])
        for mine, theirs in zip(args, answer["args"], strict=True):
            _copy_back(mine, values.decode(theirs))
        return values.decode(answer["value"])


def test(request: dict[str, Any], requests: IO[str], replies: IO[str]) -> None:
    """Run each test; say after each whether it passed."""
    sys.stdin, sys.stdout = open(os.devnull), open(os.devnull, "w")
    sys.stderr = sys.stdout
    for number, text in enumerate(request["tests"]):
        namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
        passed = False
        fault = ""
        try:
            if request["prelude"]:
                exec(compile(request["prelude"], "prelude.py", "exec"), namespace)
            for name in request["names"] or _unknown(text, namespace):
                stand_in = _Elsewhere(name, requests, replies)
                namespace[stand_in.__name__] = stand_in
            exec(compile(text, "tests.py", "exec"), namespace)
            if request["check"]:
                namespace[request["check"]](namespace[request["names"][0].rpartition(".")[2]])
            passed = True
        except BaseException as error:
            fault = type(error).__name__
        _send(replies, {"test": number, "passed": passed, "fault": fault})


def _unknown(text: str, namespace: dict[str, Any]) -> list[str]:
    """Names that the tests use and nobody has defined, so that they must be the program's."""
    tree = ast.parse(text)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    made = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
    }
    made |= {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    made |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            made |= {(a.asname or a.name).split(".")[0] for a in node.names}
        if isinstance(node, ast.ExceptHandler) and node.name:
            made.add(node.name)
    return sorted(used - made - set(namespace) - set(dir(builtins)))


def _exception(name: str, text: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:
            pass
    return RuntimeError(f"{name}: {text}")


def _copy_back(mine: Any, theirs: Any) -> None:
    """Do to an argument here what the program did to it there."""
    if type(mine) is not type(theirs):
        return
    if isinstance(mine, list):
        mine[:] = theirs
    elif isinstance(mine, (dict, set)):
        mine.clear()
        mine.update(theirs)


def _send(replies: IO[str], value: dict[str, Any]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()
