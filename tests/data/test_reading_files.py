import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longstride.data.readers import read_documents
from longstride.errors import DataError
from schemas.data import FileSource


def read(uri, **options):
    source = FileSource(kind="files", name="mine", domain="book", uri=str(uri), **options)
    bad = []
    rows = list(
        read_documents(source, seed=0, tasks=[], quarantine=lambda *where: bad.append(where))
    )
    return rows, bad


def jsonl(*texts):
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'{"text": "caf\xe9"}', "not valid UTF-8 (byte 13"),
        (b'{"text": "a\\u0000b"}', "NUL character at position 1"),
        (b'{"text": "\\ud800"}', "lone surrogate at position 0"),
        (b'{"body": "x"}', "no field 'text' (it has ['body'])"),
        (b'{"text": 7}', "the text is int, not a string"),
        (b'["text"]', "the row is list, not an object"),
        (b'{"text": "x"', "not valid JSON"),
        (b"[" * 200_000, "not valid JSON"),
    ],
)
def test_a_bad_json_row_is_quarantined_by_file_and_row_and_the_others_are_read(
    tmp_path, row, reason
):
    (tmp_path / "a.jsonl").write_bytes(jsonl("one") + row + b"\n\n" + jsonl("two"))
    rows, bad = read(tmp_path)
    assert [r.text for r in rows] == ["one", "two"]
    assert [where for where, _ in bad] == ["a.jsonl:2"]
    assert reason in bad[0][1]


def test_a_row_knows_its_file_and_line(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.jsonl").write_bytes(jsonl("one", "two"))
    rows, _ = read(tmp_path)
    assert [(r.id, r.path) for r in rows] == [
        ("mine/deep/a.jsonl:1", "deep/a.jsonl:1"),
        ("mine/deep/a.jsonl:2", "deep/a.jsonl:2"),
    ]
    assert {(r.domain, r.source) for r in rows} == {("book", "mine")}


def test_gzip_is_read_like_plain_lines(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl("one", "two"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(jsonl("one", "two")))
    rows, bad = read(tmp_path)
    assert [r.text for r in rows] == ["one", "two"] * 2 and not bad


def test_a_truncated_gzip_keeps_what_came_before_and_names_the_row_where_it_breaks(tmp_path):
    lines = [f"line {i} {hash((i, 'x'))}" for i in range(2000)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(jsonl(*lines))[:-4000])
    rows, bad = read(tmp_path)
    assert 0 < len(rows) < 2000
    assert bad[0][0] == f"a.jsonl.gz:{len(rows) + 1}" and "breaks here" in bad[0][1]


def test_a_file_that_is_no_gzip_is_quarantined(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(jsonl("one"))
    assert read(tmp_path) == ([], [("a.jsonl.gz:1", read(tmp_path)[1][0][1])])
    assert "Not a gzipped file" in read(tmp_path)[1][0][1]


def test_parquet_rows_are_read_and_bad_ones_named(tmp_path):
    raw = pa.array([b"one", None, b"caf\xe9", b"a\0b", b"two"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 5, raw.buffers())
    pq.write_table(pa.table({"text": text, "n": [1, 2, 3, 4, 5]}), tmp_path / "a.parquet")
    rows, bad = read(tmp_path)
    assert [(r.path, r.text) for r in rows] == [("a.parquet:1", "one"), ("a.parquet:5", "two")]
    assert [where for where, _ in bad] == ["a.parquet:2", "a.parquet:3", "a.parquet:4"]
    assert [why.split(" (")[0] for _, why in bad] == [
        "the text is null",
        "not valid UTF-8",
        "NUL character at position 1",
    ]


def test_a_parquet_file_without_the_column_is_refused_with_its_columns(tmp_path):
    pq.write_table(pa.table({"body": ["x"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet has no column 'text' \(it has \['body', 'n'"):
        read(tmp_path)
    assert [r.text for r in read(tmp_path, text_field="body")[0]] == ["x"]
    with pytest.raises(DataError, match=r"column 'n' of a\.parquet has type int64, not string"):
        read(tmp_path, text_field="n")


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"nothing of the kind"])
def test_a_damaged_parquet_file_is_quarantined(tmp_path, damage):
    pq.write_table(pa.table({"text": ["one"] * 500}), tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes(damage((tmp_path / "a.parquet").read_bytes()))
    rows, bad = read(tmp_path)
    assert rows == [] and bad[0][0] == "a.parquet:1" and "not readable as Parquet" in bad[0][1]


def test_a_text_file_with_broken_utf8_is_quarantined_by_line(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"one\ntwo\ncaf\xe9\n")
    (tmp_path / "good.md").write_text("fine\n")
    rows, bad = read(tmp_path)
    assert [r.path for r in rows] == ["good.md"]
    assert bad[0][0] == "bad.txt" and "line 3, byte 11" in bad[0][1]


def test_hidden_and_unknown_files_are_left_alone(tmp_path):
    (tmp_path / ".git").mkdir()
    for name in (".git/a.txt", ".b.txt", "c.png", "d.txt"):
        (tmp_path / name).write_bytes(b"text")
    assert [r.path for r in read(tmp_path)[0]] == ["d.txt"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_single_file_and_a_file_uri_work(tmp_path, name):
    (tmp_path / name).write_bytes(jsonl("one"))
    plain, _ = read(tmp_path / name)
    assert [r.path.split(":")[0] for r in plain] == [name]
    assert read(f"file://{tmp_path / name}")[0] == plain


def test_a_location_without_usable_files_is_refused(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"holds 1 files, none of a known kind; expected text"):
        read(tmp_path)
    with pytest.raises(DataError, match="holds nothing"):
        read(tmp_path / "absent")
    with pytest.raises(DataError, match="no location that can be read"):
        read("nowhere://x")


@pytest.fixture(scope="module")
def bucket():
    """A real S3 endpoint on loopback, reached through s3fs like any other."""
    from moto.server import ThreadedMotoServer

    patch = pytest.MonkeyPatch()
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "test")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    storage = s3fs.S3FileSystem()
    storage.mkdir("corpus")
    yield storage
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()
    patch.undo()


def test_an_object_store_gives_the_same_rows_as_a_disk(tmp_path, bucket):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(jsonl("one") + b"broken\n"))
    (tmp_path / "b.txt").write_text("three")
    pq.write_table(pa.table({"text": ["four", None]}), tmp_path / "c.parquet")
    for path in tmp_path.iterdir():
        bucket.pipe_file(f"corpus/v1/{path.name}", path.read_bytes())
    assert read("s3://corpus/v1") == read(tmp_path)
    assert len(read(tmp_path)[0]) == 3 and len(read(tmp_path)[1]) == 2
    assert [r.text for r in read("s3://corpus/v1/b.txt")[0]] == ["three"]


def test_a_missing_bucket_is_refused_by_name(bucket):
    with pytest.raises(DataError, match="s3://no-such-bucket/x"):
        read("s3://no-such-bucket/x")
