"""Independent random streams by name, all derived from the recipe's seed."""

from __future__ import annotations

import hashlib


def stream_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream `names`; equal arguments give equal streams."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
