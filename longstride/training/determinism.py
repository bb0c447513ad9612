"""The same seed gives the same numbers."""

from __future__ import annotations

import torch


def make_deterministic() -> None:
    """Refuse operations whose result depends on the order of threads."""
    torch.use_deterministic_algorithms(True)
