"""A run whose reader leaves (`longstride run tiny | head -1`) goes on, unseen."""

import os
import subprocess

from micro_run import MICRO, RunFolder, command, environment, longstride, wait_until

LATER = 4
"""Tasks after the reader has left: several lines that nobody reads."""


def done(folder):
    return [name for name, task in folder.tasks().items() if task.state == "SUCCEEDED"]


def test_a_run_outlives_its_reader(micro):
    reading, writing = os.pipe()
    process = subprocess.Popen(
        command("run", MICRO, "--runs", micro.runs, "--run-id", "unseen"),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    os.close(writing)
    assert os.read(reading, 10)
    os.close(reading)
    folder = RunFolder(micro.runs / "unseen")
    wait_until(lambda: process.poll() is not None or len(done(folder)) >= LATER)
    stopped = longstride("stop", folder.path)
    errors = process.communicate(timeout=60)[1]
    assert stopped.stdout == "unseen: CANCELED\n"
    assert (process.returncode, errors) == (1, "")
    assert "write-report" in done(folder)
    assert (folder.path / "report.html").exists() and folder.processes() == []
