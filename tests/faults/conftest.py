"""Faults are put into copies of what the shared run of the micro recipe left."""

import sys
from pathlib import Path

SHARED = Path(__file__).parents[1] / "e2e"
if str(SHARED) not in sys.path:
    sys.path.append(str(SHARED))

from micro_run import micro  # noqa: E402, F401 - the fixture
