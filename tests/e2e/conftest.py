"""The micro recipe is run once for all tests that look at what a run leaves."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))

from micro_run import micro  # noqa: E402, F401 - the fixture
