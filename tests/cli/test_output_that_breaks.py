"""A run whose reader leaves (`longstride run tiny | head`) goes on, unseen, to its end."""

import os
import subprocess

from micro_run import MICRO, RunFolder, command, environment

from longstride.runner import read_run


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
    errors = process.communicate(timeout=300)[1]
    folder = RunFolder(micro.runs / "unseen")
    assert (process.returncode, errors) == (0, "")
    assert read_run(folder.path).state == "SUCCEEDED"
    assert (folder.path / "report.html").exists() and folder.processes() == []
