"""Large files stream: peak resident memory of a process that reads them, measured by the kernel."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

MEBIBYTE = 2**20
READ = """
import sys
from longstride.data.files.reading import RowStream
from schemas.data import FileSource

source = FileSource(kind="files", name="big", domain="web", uri=sys.argv[1])
bad = []
rows = characters = 0
for row in RowStream(source, lambda *where: bad.append(where)):
    rows += 1
    characters += len(row.text)
print(rows, characters, len(bad))
"""

BUILD = """
import json, sys
from pathlib import Path
from longstride.data.corpus import build_corpus
from schemas.recipe import Recipe

source = {"kind": "files", "name": "big", "domain": "web", "uri": sys.argv[1]}
recipe = Recipe.model_validate({
    "name": "big",
    "data": {"sources": [source], "mixture": {"web": 1.0}, "characters": int(sys.argv[3]),
             "cleaning": json.loads(sys.argv[4])},
    "tasks": [{"name": "chain_sum", "levels": [{"parameters": {"min_terms": 2, "max_terms": 2}}]}],
    "extension": [{"window": 256, "rope_base": 20000, "tokens": 8000, "learning_rate": 1e-3}],
})
counts = build_corpus(recipe, Path(sys.argv[2])).counts
print(counts["rows_read"], counts["characters"], counts["quarantined"])
"""

PEAK = """
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) // 1024)
"""


def measured(program, *arguments, timeout=500):
    """What a program printed, and its peak in mebibytes."""
    command = [sys.executable, "-c", program + PEAK, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
    first, peak = done.stdout.splitlines()
    return [int(word) for word in first.split()], int(peak)


def write_jsonl(path: Path, mebibytes: int) -> int:
    """Rows of some 2,000 characters, all different; return how many."""
    rng = random.Random(5)
    words = [f"{a}{b}{c}" for a in "bcdfglm" for b in "aeiou" for c in ("n", "rt", "st", "ll")]
    blocks = [" ".join(rng.choices(words, k=90)) + "." for _ in range(512)]
    rows = 0
    with path.open("w") as stream:
        while stream.tell() < mebibytes * MEBIBYTE:
            lines = [
                json.dumps({"text": f"Row {rows + i}. " + "\n".join(rng.choices(blocks, k=6))})
                for i in range(500)
            ]
            stream.write("\n".join(lines) + "\n")
            rows += len(lines)
    return rows


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    path = tmp_path_factory.mktemp("big") / "rows.jsonl"
    return path, write_jsonl(path, 200)


def test_reading_two_hundred_mebibytes_takes_half_of_them_in_memory(big):
    path, rows = big
    (read, characters, bad), peak = measured(READ, path)
    assert (read, bad) == (rows, 0) and characters > 0.97 * path.stat().st_size
    assert peak < 100
    empty = path.with_name("empty.jsonl")
    empty.write_text('{"text": "one"}\n')
    _, base = measured(READ, empty)
    assert peak - base < 20


def test_a_corpus_is_built_in_a_fraction_of_its_size_in_memory(tmp_path):
    peaks = []
    for mebibytes in (1, 60):
        path = tmp_path / f"{mebibytes}.jsonl"
        rows = write_jsonl(path, mebibytes)
        wanted = int(path.stat().st_size * 0.9)
        out = tmp_path / f"out-{mebibytes}"
        (read, characters, bad), peak = measured(BUILD, path, out, wanted, "null")
        assert (read, bad) == (rows, 0) and characters == pytest.approx(wanted, rel=0.01)
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 30


def test_one_enormous_text_file_is_read_in_pieces(tmp_path):
    path = tmp_path / "one.txt"
    with path.open("w") as stream:
        for number in range(100):
            stream.write((f"A line of block {number}.\n" if number % 2 else "x" * 25) * 40_000)
    (rows, characters, bad), peak = measured(READ, path)
    assert characters == path.stat().st_size and rows > 20 and bad == 0
    assert peak < 150


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_gibibytes_stream_under_one_gibibyte(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = write_jsonl(path, 2048)
    # Everything but what only costs time: near-duplicates need most memory of all rules.
    rules = ("contamination", "language", "gopher_quality", "gopher_repetition", "fineweb")
    cleaning = {name: {"domains": []} for name in rules}
    (read, _, bad), peak = measured(
        BUILD, path, tmp_path / "out", 2**30, json.dumps(cleaning), timeout=7000
    )  # fmt: skip
    assert (read, bad) == (rows, 0)
    assert peak < 1024
