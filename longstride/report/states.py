"""States and verdicts as a shape, a word and a colour, never by colour alone."""

from __future__ import annotations

from longstride.report.markup import Safe, join, tag

SHAPES = {
    "ok": "M3.2 8.4l3.2 3.2 6.4-7",
    "bad": "M4 4l8 8M12 4l-8 8",
    "warn": "M8 3v6M8 12v1",
    "run": "M5.5 3.5l6 4.5-6 4.5z",
    "wait": "M4 8h.2M8 8h.2M12 8h.2",
    "skip": "M3 8h10",
    "stop": "M4.5 4.5h7v7h-7z",
    "cached": "M8 2.5L13.5 8 8 13.5 2.5 8z",
    "retry": "M12.5 8a4.5 4.5 0 1 1-1.6-3.4M11.5 1.8v3.2h-3.2",
}

_TONES = {
    "SUCCEEDED": "ok",
    "FAILED": "bad",
    "ERROR": "bad",
    "RUNNING": "run",
    "CANCELING": "stop",
    "CANCELED": "stop",
    "CANCELLED": "stop",
    "SKIPPED": "skip",
}


def tone(state: str) -> str:
    """CSS class and symbol of a state; an unknown one looks like waiting."""
    return _TONES.get(state.upper(), "wait")


def word(state: str) -> str:
    """A state as people write it."""
    return state.replace("_", " ").capitalize()


def definitions() -> Safe:
    """The symbols, once a page."""
    symbols = [
        tag("symbol", tag("path", d=path), id=f"s-{name}", viewBox="0 0 16 16")
        for name, path in SHAPES.items()
    ]
    return tag("svg", *symbols, class_="defs", width="0", height="0", aria_hidden="true")


def symbol(name: str, x: float = 0, y: float = 0, size: float = 12) -> Safe:
    """A symbol inside an SVG."""
    return tag("use", href=f"#s-{name}", x=x, y=y, width=size, height=size, class_=f"sym {name}")


def icon(name: str) -> Safe:
    """A symbol inside text."""
    return tag("svg", tag("use", href=f"#s-{name}"), class_=f"icon sym {name}",
               viewBox="0 0 16 16", aria_hidden="true")  # fmt: skip


def pill(name: str, text: str, size: str = "") -> Safe:
    """A symbol with its word."""
    return tag("span", icon(name), tag("span", text), class_=f"pill {name} {size}".strip())


def tally(counts: dict[str, int]) -> Safe:
    """Counts by state as pills, the empty ones left out."""
    return join(*(pill(tone(state), f"{count} {word(state).lower()}")
                  for state, count in counts.items() if count))  # fmt: skip
