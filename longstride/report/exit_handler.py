"""The report that the pipeline's exit handler writes, wherever the pipeline ran."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from longstride.report.collect import collect, collect_from_root
from longstride.report.render import render_report
from longstride.store.files import write_text

RUN_DIRECTORY_VARIABLE = "LONGSTRIDE_RUN_DIR"
REPORTED_SUFFIXES = (".json", ".jsonl")


def report_from_exit_handler(pipeline_root: str, *, state: str, error: str, out: Path) -> None:
    """Collect what the run left so far and write the report to `out`.

    Under the embedded executor LONGSTRIDE_RUN_DIR names the run directory; elsewhere the artifacts
    are found below the pipeline root, which may be a remote store.
    """
    run_dir = os.environ.get(RUN_DIRECTORY_VARIABLE)
    if run_dir:
        record = collect(Path(run_dir))
        # The exit handler runs inside the run it reports on, which is therefore still running.
        record.state, record.error = state, error or record.error
    else:
        with tempfile.TemporaryDirectory() as folder:
            root = _local_copy(pipeline_root, Path(folder))
            record = collect_from_root(root, state, error=error or None)
    write_text(out, render_report(record))


def _local_copy(pipeline_root: str, folder: Path) -> Path:
    """The root itself when it is on this machine, else a copy of its small files."""
    parts = urlsplit(pipeline_root)
    if parts.scheme in ("", "file"):
        return Path(parts.path)
    import fsspec

    files, root = fsspec.core.url_to_fs(pipeline_root)
    for name in files.find(root):
        if name.endswith(REPORTED_SUFFIXES):
            target = folder / Path(name).relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(name, str(target))
    return folder
