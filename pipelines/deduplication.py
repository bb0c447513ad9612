"""Share what the compiler copies.

kfp compiles a sub-pipeline anew at every use, so six RL rounds carry six equal copies of every
component and executor. Equal definitions are merged here; the IR means the same and is a third of
the size, which matters to clusters that store a whole workflow in one object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schemas.base import canonical_json

Renames = dict[str, str]


def deduplicate(spec: dict[str, Any], platform: dict[str, Any]) -> None:
    """Merge equal executors, then equal components bottom-up, in place."""
    executors = spec["deploymentSpec"]["executors"]
    kubernetes = (
        platform.get("platforms", {})
        .get("kubernetes", {})
        .get("deploymentSpec", {})
        .get("executors", {})
    )
    renames = _merge(executors, lambda name: [executors[name], kubernetes.get(name)])
    for name in renames:
        kubernetes.pop(name, None)
    components = spec["components"]
    for component in components.values():
        label = component.get("executorLabel")
        if label in renames:
            component["executorLabel"] = renames[label]
    while renames := _merge(components, lambda name: components[name]):
        for component in [spec["root"], *components.values()]:
            for task in component.get("dag", {}).get("tasks", {}).values():
                reference = task["componentRef"]
                reference["name"] = renames.get(reference["name"], reference["name"])


def _merge(named: dict[str, Any], content: Callable[[str], Any]) -> Renames:
    """Drop every entry whose content equals that of an earlier one; return dropped -> kept."""
    kept: dict[str, str] = {}
    renames: Renames = {}
    for name in sorted(named, key=lambda name: (len(name), name)):
        text = canonical_json(content(name))
        if text in kept:
            renames[name] = kept[text]
        else:
            kept[text] = name
    for name in renames:
        del named[name]
    return renames
