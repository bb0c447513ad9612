"""Rows a second and peak memory of the data room: read, clean, de-duplicate, mix, pack.

Text is what the running Python ships (its library as code, its docstrings as prose), repeated with
changed words until there is enough, so that near-duplicates are found among real texts. Each
measurement is a process of its own, so that its peak is its own; medians over repeats are printed
and written as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from longstride.data.cleaning import Cleaner
from longstride.data.corpus import build_corpus
from longstride.data.files.reading import RowStream
from longstride.data.measures.minhash import shingle_set
from longstride.data.measures.words import WordHasher
from longstride.data.near import NearDuplicates
from longstride.data.packing import best_fit, pack_documents
from longstride.data.readers import read_documents
from longstride.data.rows import Segment
from longstride.data.spool import DigestSet
from longstride.data.text import digest, normalise, split_lines
from longstride.store.artifacts import publish
from longstride.store.files import read_jsonl, write_jsonl
from longstride.tokens.tokenizer import Tokenizer
from schemas.cleaning import CleaningConfig
from schemas.data import FileSource, StandardLibrarySource
from schemas.model import TokenizerConfig
from schemas.recipe import Recipe
from schemas.rows import Document

FORMATS = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet", "arrow")


def shipped_texts() -> list[str]:
    """Prose and code of the running Python, in pieces of a few thousand characters."""
    texts: list[str] = []
    for part in ("docstrings", "code"):
        source = StandardLibrarySource(kind="standard_library", name=part, domain="book", part=part)
        for row in read_documents(source, seed=1, tasks=[], quarantine=lambda *where: None):
            texts += list(split_lines(normalise(row.text), 4_000))
    return [text for text in texts if len(text) > 200]


def real_rows(count: int) -> Iterator[str]:
    """As many texts as wanted; beyond what is shipped, copies with one word in five changed."""
    texts = shipped_texts()
    rng = random.Random(1)
    vocabulary = " ".join(texts[:200]).split()
    for number in range(count):
        text = texts[number % len(texts)]
        if number >= len(texts):
            words = text.split(" ")
            for place in rng.sample(range(len(words)), len(words) // 5):
                words[place] = rng.choice(vocabulary)
            text = " ".join(words)
        yield text


def prepare(folder: Path, rows: int) -> None:
    """Write the same rows in every format, as documents, and a tokenizer."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    texts = list(real_rows(rows))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    for name in FORMATS:
        (folder / name).mkdir(parents=True)
    (folder / "jsonl" / "a.jsonl").write_bytes(lines)
    (folder / "jsonl.gz" / "a.jsonl.gz").write_bytes(gzip.compress(lines, 6))
    (folder / "jsonl.zst" / "a.jsonl.zst").write_bytes(zstandard.compress(lines))
    table = pa.table({"text": texts})
    pq.write_table(table, folder / "parquet" / "a.parquet", row_group_size=1_000)
    with pa.ipc.new_stream(folder / "arrow" / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=1_000)
    documents = [
        Document(id=f"d/{i}", text=text, domain="book", source="d", path=f"{i:07d}")
        for i, text in enumerate(texts)
    ]
    write_jsonl(folder / "documents" / "documents.jsonl", documents)
    publish(folder / "documents", "documents", "corpus")
    Tokenizer.train(texts[:500], TokenizerConfig(vocab_size=2_000), folder / "tokenizer")


def _documents(folder: Path) -> list[Document]:
    return list(read_jsonl(folder / "documents" / "documents.jsonl", Document))


def _read(name: str) -> Callable[[Path], Callable[[], int]]:
    def prepared(folder: Path) -> Callable[[], int]:
        source = FileSource(kind="files", name="r", domain="book", uri=str(folder / name))
        return lambda: sum(1 for _ in RowStream(source, lambda *where: None))

    return prepared


def _clean(folder: Path) -> Callable[[], int]:
    documents = _documents(folder)
    cleaner = Cleaner(CleaningConfig(), [])
    cleaner.judge(documents[0], generated=False)  # loads the model of languages

    def run() -> int:
        for document in documents:
            cleaner.refusal(document)
            text = cleaner.mend(normalise(document.text), document, generated=False)
            cleaner.judge(document.model_copy(update={"text": text}), generated=False)
        return len(documents)

    return run


def _exact(folder: Path) -> Callable[[], int]:
    documents = _documents(folder)

    def run() -> int:
        seen = DigestSet()
        for document in documents:
            seen.add(int(digest(document.text)[:16], 16))
        return len(documents)

    return run


def _near(folder: Path) -> Callable[[], int]:
    documents = _documents(folder)

    def run() -> int:
        hasher = WordHasher()
        near = NearDuplicates(
            folder / "bands", lambda i: shingle_set(hasher.hashes(documents[i].text))
        )
        for index, document in enumerate(documents):
            near.add(index, shingle_set(hasher.hashes(document.text)))
        near.find()
        near.close()
        return len(documents)

    return run


def _corpus(folder: Path) -> Callable[[], int]:
    uri = str(folder / "jsonl")
    recipe = Recipe.model_validate({
        "name": "bench",
        "data": {
            "sources": [{"kind": "files", "name": "r", "domain": "book", "uri": uri}],
            "mixture": {"book": 1.0},
            "characters": 200_000,
            "cleaning": {"contamination": {"domains": []}},
        },
        "tasks": [{"name": "chain_sum", "levels": [{"parameters": {}}]}],
        "extension": [{"window": 256, "rope_base": 2e4, "tokens": 1, "learning_rate": 1e-3}],
    })  # fmt: skip

    def run() -> int:
        manifest = build_corpus(recipe, folder / "corpus")
        return manifest.counts["rows_read"]

    return run


def _pack_documents(folder: Path) -> Callable[[], int]:
    tokenizer = Tokenizer.load(folder / "tokenizer")
    rows = len(_documents(folder))

    def run() -> int:
        pack_documents(
            folder / "documents", tokenizer, 4_096, 10**9, 1, folder / "packed", "extend-1",
            long_share=0.05,
        )  # fmt: skip
        return rows

    return run


def _best_fit(folder: Path) -> Callable[[], int]:
    rng = random.Random(2)
    lengths = [min(4_096, int(rng.lognormvariate(6, 0.9)) + 1) for _ in range(50_000)]
    segments = [Segment(str(i), "book", [0] * n, [], False) for i, n in enumerate(lengths)]

    def run() -> int:
        best_fit(segments, 4_096)
        return len(segments)

    return run


TASKS: dict[str, Callable[[Path], Callable[[], int]]] = {
    **{f"read {name}": _read(name) for name in FORMATS},
    "clean": _clean,
    "exact duplicates": _exact,
    "near duplicates": _near,
    "corpus, whole step": _corpus,
    "pack documents": _pack_documents,
    "pack conversations (best fit)": _best_fit,
}


def measure(task: str, folder: Path) -> dict[str, float]:
    """Run one task in this process: rows, CPU seconds, peak mebibytes before and after."""
    run = TASKS[task](folder)
    before = _peak()
    began = time.process_time()
    rows = run()
    seconds = time.process_time() - began
    return {"rows": rows, "seconds": seconds, "before": before, "peak": _peak()}


def _peak() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no VmHWM: this benchmark needs Linux")


def in_a_process(task: str, folder: Path) -> dict[str, float]:
    """The same in a fresh process."""
    command = [sys.executable, __file__, "--task", task, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(rows: int, repeats: int) -> dict[str, Any]:
    """Measure every task, medians over repeats."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="data-speed-") as name:
        folder = Path(name)
        prepare(folder, rows)
        size = (folder / "jsonl" / "a.jsonl").stat().st_size
        print(f"{rows} rows, {size / 2**20:.1f} MiB of JSONL; medians of {repeats}")
        print(f"{'':32}{'rows/s':>12}{'MiB/s':>10}{'peak MiB':>10}{'added':>8}")
        for task in TASKS:
            runs = [in_a_process(task, folder) for _ in range(repeats)]
            rate = statistics.median(run["rows"] / run["seconds"] for run in runs)
            peak = statistics.median(run["peak"] for run in runs)
            added = statistics.median(run["peak"] - run["before"] for run in runs)
            of_text = task != "pack conversations (best fit)"
            speed = rate * size / rows / 2**20 if of_text else None
            results[task] = {
                "rows_per_cpu_second": rate, "mib_per_cpu_second": speed, "peak_mib": peak,
                "added_mib": added, "runs": runs,
            }  # fmt: skip
            shown = f"{speed:>10.1f}" if speed is not None else f"{'':>10}"
            print(f"{task:32}{rate:>12,.0f}{shown}{peak:>10.0f}{added:>8.0f}", flush=True)
    return {"rows": rows, "bytes": size, "repeats": repeats, "results": results}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--task", choices=TASKS)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.task:
        print(json.dumps(measure(given.task, given.folder)))
        return
    found = report(given.rows, given.repeats)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
