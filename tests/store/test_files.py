import json

import pytest

from longstride.errors import DataError
from longstride.store.artifacts import digest_of_artifact, open_artifact, publish
from longstride.store.files import atomic_write, read_json, read_jsonl, write_jsonl
from longstride.store.metrics import MetricsWriter
from longstride.store.progress import PROGRESS_VARIABLE, Progress
from longstride.store.seeds import stream_seed
from schemas.rows import Document


def document(name="a", text="some text"):
    return Document(id=name, text=text, domain="code", source="s")


def test_a_file_that_is_not_finished_never_appears_under_its_name(tmp_path):
    path = tmp_path / "file.txt"
    with pytest.raises(RuntimeError), atomic_write(path) as stream:
        stream.write("half")
        raise RuntimeError("killed")
    assert list(tmp_path.iterdir()) == []


def test_rows_survive_a_round_trip(tmp_path):
    rows = [document("a"), document("b", "line\nbreak \u2028 and \x85")]
    assert write_jsonl(tmp_path / "rows.jsonl", rows) == 2
    assert list(read_jsonl(tmp_path / "rows.jsonl", Document)) == rows


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"id": "b"}', "text: Field required"),
        (b"not json", "Invalid JSON"),
        (b'{"id": "b", "text": "\xff", "domain": "code", "source": "s"}', "Invalid JSON"),
        (b'{"id": "b", "text": "", "domain": "sport", "source": "s"}', "domain.*'sport'"),
        (b'{"id": "b", "text": "", "domain": "code", "source": "s", "x": 1}', "x: Extra inputs"),
    ],
)
def test_a_bad_row_is_named_by_file_line_field_and_value(tmp_path, line, problem):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(document().model_dump_json().encode() + b"\n" + line + b"\n")
    with pytest.raises(
        DataError, match=rf"rows\.jsonl, line 2 is not a valid Document: .*{problem}"
    ):
        list(read_jsonl(path, Document))


def test_a_missing_file_says_which_step_is_to_blame(tmp_path):
    with pytest.raises(DataError, match=r"rows\.jsonl does not exist; the step"):
        list(read_jsonl(tmp_path / "rows.jsonl", Document))


def test_a_file_that_is_not_utf8_is_named_with_the_byte(tmp_path):
    (tmp_path / "a.json").write_bytes(b'{"id": "\xff"}')
    with pytest.raises(DataError, match=r"a\.json is not valid UTF-8 \(byte 8"):
        read_json(tmp_path / "a.json", Document)


@pytest.fixture
def artifact(tmp_path):
    write_jsonl(tmp_path / "documents.jsonl", [document()])
    publish(tmp_path, "documents", "corpus", counts={"documents": 1})
    return tmp_path


def test_a_published_artifact_opens_with_its_counts(artifact):
    assert open_artifact(artifact, "documents").counts == {"documents": 1}


def test_an_artifact_without_a_manifest_does_not_exist(artifact):
    (artifact / "manifest.json").unlink()
    with pytest.raises(DataError, match="never published"):
        open_artifact(artifact, "documents")


def test_an_artifact_of_another_kind_is_refused(artifact):
    with pytest.raises(DataError, match="holds a documents artifact, but a chat was expected"):
        open_artifact(artifact, "chat")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-3]), "bytes.*truncated"),
        (lambda p: p.write_bytes(b"x" + p.read_bytes()[1:]), "does not match its sha256"),
        (lambda p: p.unlink(), "is missing although"),
    ],
)
def test_a_file_that_was_changed_after_publishing_is_refused_by_name(artifact, change, problem):
    change(artifact / "documents.jsonl")
    with pytest.raises(DataError, match=rf"documents\.jsonl.*{problem}"):
        open_artifact(artifact, "documents")


def test_the_digest_of_an_artifact_is_that_of_its_content_not_of_its_maker(artifact):
    before = digest_of_artifact(open_artifact(artifact, "documents"))
    publish(artifact, "documents", "another stage", recipe_digest="sha256:1")
    assert digest_of_artifact(open_artifact(artifact, "documents")) == before


def test_metrics_are_on_disk_as_soon_as_they_are_logged(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.log(3, {"train/loss": 1.5})
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (row["step"], row["name"], row["value"]) == (3, "train/loss", 1.5)
    with pytest.raises(ValueError, match="train/loss at step 4 is nan"):
        writer.log(4, {"train/loss": float("nan")})
    writer.__exit__(None, None, None)


def test_progress_is_a_file_that_a_live_view_can_read(tmp_path, monkeypatch):
    path = tmp_path / "progress.json"
    monkeypatch.setenv(PROGRESS_VARIABLE, str(path))
    Progress(total=10, unit="steps").update(10, "loss 1.0")
    value = json.loads(path.read_text())
    assert (value["done"], value["total"], value["unit"]) == (10, 10, "steps")
    assert value["updated_at"] >= value["started_at"]


def test_streams_are_independent_and_reproducible():
    assert stream_seed(7, "rl", 1) == stream_seed(7, "rl", 1)
    seeds = {stream_seed(7, "rl", n) for n in range(100)} | {stream_seed(8, "rl", 1)}
    assert len(seeds) == 101
