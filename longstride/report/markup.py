"""HTML by construction: every string is escaped unless this module itself made it markup."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from typing import Any, Union

_CONTROL = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {127: 0x2421}
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:_-]*\Z")
_VOID = frozenset({"br", "hr", "meta", "col", "input"})


class Safe(str):
    """Markup that is safe to embed; only this module makes it."""

    __slots__ = ()


Child = Union["str", "int", "float", "Safe", None, Iterable["Child"]]


def escape(value: object) -> Safe:
    """Return text that reads as itself in HTML; control characters become their pictures."""
    if isinstance(value, Safe):
        return value
    plain = _SURROGATE.sub("\ufffd", str(value)).translate(_CONTROL)
    return Safe(html.escape(plain, quote=True))


def join(*children: Child) -> Safe:
    """Concatenate children, escaping whatever is not markup yet; None disappears."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, str | int | float):
            parts.append(escape(child))
        else:
            parts.append(join(*child))
    return Safe("".join(parts))


def tag(name_: str, /, *children: Child, **attributes: object) -> Safe:
    """Return one element.

    Attribute names lose a trailing underscore, and other underscores become hyphens. True gives a
    bare attribute; None and False give none.
    """
    parts = [f"<{name_}"]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if not _NAME.match(attribute):
            raise ValueError(f"{attribute!r} is not an attribute name")
        if value is None or value is False:
            continue
        if isinstance(value, float):
            value = f"{value:.2f}".rstrip("0").rstrip(".")
        parts.append(f" {attribute}" if value is True else f' {attribute}="{_quoted(value)}"')
    parts.append(">")
    if name_ not in _VOID:
        parts += [join(*children), f"</{name_}>"]
    return Safe("".join(parts))


def _quoted(value: object) -> str:
    return str(escape(str(value) if isinstance(value, Safe) else value))


def json_attribute(value: Any) -> str:
    """Compact JSON for a data attribute (escaped by `tag` like any other value)."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def raw_script(source: str) -> Safe:
    """Embed our own script.

    Raises:
        ValueError: The source would close its element early.
    """
    return _raw("script", source)


def raw_style(source: str) -> Safe:
    """Embed our own style sheet.

    Raises:
        ValueError: The source would close its element early.
    """
    return _raw("style", source)


def _raw(name: str, source: str) -> Safe:
    if "</" in source or "<!--" in source:
        raise ValueError(f"a {name} element may not hold '</' or '<!--'")
    return Safe(f"<{name}>{source}</{name}>")


def slug(text: str) -> str:
    """A fragment identifier made of a name; distinct names may collide, so number them."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
