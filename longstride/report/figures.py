"""Numbers for people: few digits, units, aligned; the exact value stays in the markup."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from longstride.report.markup import Safe, tag

MISSING = "–"  # noqa: RUF001 - an en dash is what a table shows for "nothing here"


def number(value: float | int | None, digits: int = 4) -> str:
    """Four significant digits; thousands separated; powers of ten only where they help."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return {"inf": "∞", "-inf": "−∞"}.get(str(value), "not a number")  # noqa: RUF001
    if value == 0:
        return "0"
    size = abs(value)
    if float(value).is_integer() and size < 1e15:
        return _minus(f"{int(value):,}")
    if size >= 1e6 or size < 1e-4:
        mantissa, exponent = f"{value:.{min(digits, 3) - 1}e}".split("e")
        return _minus(f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}"
                      f"e{int(exponent)}")  # fmt: skip
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    return _minus(text.rstrip("0").rstrip(".") if "." in text else text)


def _minus(text: str) -> str:
    return text.replace("-", "−", 1) if text.startswith("-") else text  # noqa: RUF001


def fixed(value: float, decimals: int) -> str:
    """A fixed number of decimals with a true minus sign, for columns that align."""
    return _minus(f"{value:,.{decimals}f}")


def percent(share: float | None, decimals: int = 1) -> str:
    """A share in 0..1 as a percentage."""
    if share is None:
        return MISSING
    return _minus(f"{100 * share:.{decimals}f}\u2009%")


def points(share: float, decimals: int = 1) -> str:
    """A difference of shares in percentage points, signed."""
    return _minus(f"{100 * share:+.{decimals}f}")


def duration(seconds: float | None) -> str:
    """A duration in its two largest units."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    seconds = max(0.0, seconds)
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def memory(size: float | None) -> str:
    """Bytes in binary units."""
    if size is None:
        return MISSING
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the loop returns at its last unit")


def moment(seconds: float | None) -> str:
    """Unix seconds as a date and time in UTC."""
    if seconds is None:
        return MISSING
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return MISSING


def plural(count: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shorten(text: str, limit: int) -> str:
    """Cut in the middle, because the ends of paths and digests tell them apart."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def value(observed: float | int | str | bool | None, shown: str | None = None) -> Safe:
    """A measured value: rounded for the eye, exact in the `value` attribute and on hover."""
    if observed is None:
        return tag("data", MISSING, value="null")
    if isinstance(observed, bool):
        return tag("data", "yes" if observed else "no", value=str(observed).lower())
    if isinstance(observed, str):
        return tag("data", observed, value=observed)
    text = number(observed) if shown is None else shown
    return tag("data", text, value=repr(observed), title=repr(observed))
