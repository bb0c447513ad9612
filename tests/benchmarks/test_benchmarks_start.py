"""A benchmark is run by hand, seldom; what it imports from the library moves meanwhile."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
PEERS = {"rl_speed_trl.py": "datasets"}


@pytest.mark.parametrize("script", sorted(path.name for path in FOLDER.glob("*.py")))
def test_everything_that_a_benchmark_imports_exists(script, monkeypatch):
    if script in PEERS:
        pytest.importorskip(PEERS[script], reason="runs in the environment of `make setup-peers`")
    monkeypatch.syspath_prepend(str(FOLDER))
    names = runpy.run_path(str(FOLDER / script), run_name="imported")
    assert names["__doc__"], "says what it measures"
