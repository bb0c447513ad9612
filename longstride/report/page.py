"""The head of a self-contained page: style inside, one script by digest, nothing from outside."""

from __future__ import annotations

import base64
import hashlib

from longstride.report.markup import Safe, raw_style, tag
from longstride.report.script import SCRIPT
from longstride.report.style import STYLE


def head(title: str) -> Safe:
    """A head that lets nothing run but our script."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
              "base-uri 'none'; form-action 'none'")  # fmt: skip
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        raw_style(STYLE),
    )
