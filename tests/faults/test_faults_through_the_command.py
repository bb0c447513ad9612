"""A fault at the start, or between a kill and a resume: exit code 1, a name, a report."""

import html

import pytest
from faulty_artifacts import flip_a_byte, folder_source
from micro_run import MICRO, RunFolder, longstride, start, wait_until


def assert_refused(done, run_dir, *told):
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert "Traceback" not in output
    assert "FAILED after" in output and "longstride resume" in output
    page = html.unescape((run_dir / "report.html").read_text(encoding="utf-8"))
    for words in told:
        assert words in output
        assert words in page
    assert RunFolder(run_dir).processes() == []


def write_broken(folder):
    rows = [b'{"text": "caf\xe9 %d"}\n' % number for number in range(20)]
    (folder / "notes.jsonl").write_bytes(b"".join(rows))


def write_nothing(folder):
    (folder / "read.me").write_text("nothing that is read")


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (write_broken, ("'mine'", "notes.jsonl:1", "not valid UTF-8")),
        (write_nothing, ("'mine'", "corpus-of-mine")),
    ],
)
def test_a_corpus_that_cannot_be_used_is_refused_by_source_file_and_row(write, told, tmp_path):
    folder = tmp_path / "corpus-of-mine"
    folder.mkdir()
    write(folder)
    sources = f"data.sources={folder_source(folder)}"
    done = longstride("run", MICRO, "--set", sources, "--runs", tmp_path, "--run-id", "broken")
    assert_refused(done, tmp_path / "broken", *told)


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Killed after the corpus was made; then a byte of it changes on disk; then resumed."""
    runs = tmp_path_factory.mktemp("changed")
    folder = RunFolder(runs / "changed")
    process = start("run", MICRO, "--runs", runs, "--run-id", "changed", "--no-cache")
    try:
        wait_until(lambda: folder.tasks()["build-corpus"].state == "SUCCEEDED"
                   if "build-corpus" in folder.tasks() else False)  # fmt: skip
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: not folder.processes(), 20)
    flip_a_byte(folder.output("build-corpus", "corpus") / "documents.jsonl")
    return folder, longstride("resume", folder.path)


def test_an_artifact_that_changed_between_kill_and_resume_is_refused_by_file(changed):
    folder, done = changed
    assert_refused(done, folder.path, "documents.jsonl", "does not match its sha256")


def test_nothing_was_trained_on_the_changed_artifact(changed):
    folder, _ = changed
    tasks = folder.tasks()
    assert tasks["build-corpus"].state == "SUCCEEDED"
    assert len(tasks["build-corpus"].attempts) == 1
    assert not any("train-language" in name and task.attempts for name, task in tasks.items())
