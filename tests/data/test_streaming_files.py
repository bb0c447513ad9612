"""Cursors, shards, shuffling, conservation and bounds of the readers of files."""

import gzip
import io
import itertools
import json
import random
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.data.files import lines
from longstride.data.files.position import Cursor, Shard
from longstride.data.files.reading import RowStream, ShuffledCursor, ShuffledStream
from longstride.errors import DataError
from schemas.data import FileSource

KINDS = ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "arrow", "txt"]


def source_of(folder, **options):
    return FileSource(kind="files", name="mine", domain="book", uri=str(folder), **options)


def jsonl(texts):
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def arrow(texts, batch=3):
    sink = io.BytesIO()
    table = pa.table({"n": list(range(len(texts))), "text": pa.array(texts, pa.string())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return sink.getvalue()


def parquet(texts):
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), sink, row_group_size=4)
    return sink.getvalue()


def write(folder, kind, name, texts):
    data = {
        "jsonl": lambda: jsonl(texts),
        "jsonl.gz": lambda: gzip.compress(jsonl(texts)),
        "jsonl.zst": lambda: zstandard.compress(jsonl(texts)),
        "parquet": lambda: parquet(texts),
        "arrow": lambda: arrow(texts),
        "txt": lambda: "\n".join(texts).encode(),
    }[kind]()
    (folder / f"{name}.{kind}").write_bytes(data)


def read(source, **options):
    bad = []
    stream = RowStream(source, lambda *where: bad.append(where), **options)
    return [(row.path, row.text) for row in stream], bad


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Two files of each kind; some rows have no text."""
    folder = tmp_path_factory.mktemp("mixed")
    for kind in KINDS:
        for number in range(2):
            texts = [f"{kind} {number} row {i}" for i in range(11)]
            write(folder, kind, f"part-{number}", texts)
    with (folder / "part-0.jsonl").open("ab") as stream:
        stream.write(b'{"text": 7}\n\n{"text": "last"}\n')
    return folder


def test_every_format_gives_its_rows_with_file_row_and_offset(mixed):
    bad = []
    rows = list(RowStream(source_of(mixed), lambda *where: bad.append(where)))
    assert Counter(row.path.split(":")[0].split(".", 1)[1] for row in rows) == {
        "jsonl": 23, "jsonl.gz": 22, "jsonl.zst": 22, "parquet": 22, "arrow": 22, "txt": 2,
    }  # fmt: skip
    assert bad == [("part-0.jsonl:12", "the text is int, not a string")]
    for row in rows:
        if row.path.startswith("part-0.jsonl:"):
            with (mixed / "part-0.jsonl").open("rb") as stream:
                stream.seek(row.offset)
                assert json.loads(stream.readline())["text"] == row.text


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 120))
def test_reading_some_then_the_rest_from_the_cursor_is_reading_all(mixed, count):
    source = source_of(mixed)
    bad = []
    stream = RowStream(source, lambda *where: bad.append(where))
    first = [(row.path, row.text) for row in itertools.islice(stream, count)]
    cursor = Cursor.model_validate_json(stream.cursor.model_dump_json())
    rest, rest_bad = read(source, cursor=cursor)
    whole, whole_bad = read(source)
    assert first + rest == whole
    assert bad + rest_bad == whole_bad


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 30))
def test_shards_are_disjoint_and_together_the_whole(mixed, count):
    whole, whole_bad = read(source_of(mixed))
    shards = [read(source_of(mixed), shard=Shard(index=i, count=count)) for i in range(count)]
    assert sorted(row for rows, _ in shards for row in rows) == sorted(whole)
    assert [bad for _, found in shards for bad in found] == whole_bad


def test_few_large_files_are_shared_by_rows(tmp_path):
    write(tmp_path, "jsonl", "only", [f"row {i}" for i in range(100)])
    sizes = [len(read(source_of(tmp_path), shard=Shard(index=i, count=4))[0]) for i in range(4)]
    assert sizes == [25, 25, 25, 25]


def test_a_shard_keeps_its_rows_when_texts_change(tmp_path):
    write(tmp_path, "jsonl", "a", [f"row {i}" for i in range(20)])
    shard = Shard(index=1, count=3)
    before = [path for path, _ in read(source_of(tmp_path), shard=shard)[0]]
    write(tmp_path, "jsonl", "a", [f"other text of row {i}" for i in range(20)])
    assert [path for path, _ in read(source_of(tmp_path), shard=shard)[0]] == before


def test_a_shard_out_of_range_is_refused():
    with pytest.raises(ValueError, match="the index runs from 0 to 2"):
        Shard(index=3, count=3)


@settings(max_examples=40, deadline=None)
@given(taken=st.integers(0, 60), rows=st.integers(1, 50))
def test_a_shuffled_stream_resumes_exactly_and_loses_nothing(mixed, taken, rows):
    source = source_of(mixed)

    def stream(cursor=None, seed=3):
        return ShuffledStream(source, lambda *where: None, seed, rows=rows, cursor=cursor)

    whole = [row.path for row in stream()]
    first, partial = [], stream()
    for row in partial:
        first.append(row.path)
        if len(first) > taken:
            break
    cursor = ShuffledCursor.model_validate_json(partial.cursor.model_dump_json())
    assert first + [row.path for row in stream(cursor)] == whole
    assert sorted(whole) == sorted(path for path, _ in read(source)[0])


def test_a_shuffle_is_a_matter_of_the_seed(mixed):
    def order(seed):
        return [row.path for row in ShuffledStream(source_of(mixed), lambda *where: None, seed)]

    assert order(1) == order(1) != order(2)


def test_a_cursor_in_a_file_that_is_gone_is_refused(mixed):
    with pytest.raises(DataError, match=r"cursor stands in 'x\.jsonl'"):
        RowStream(source_of(mixed), lambda *where: None, cursor=Cursor(file="x.jsonl", row=3))


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["jsonl", "parquet", "arrow"]),
    texts=st.lists(st.text(max_size=30), min_size=1, max_size=25),
    data=st.data(),
)
def test_rows_in_are_rows_out_plus_quarantined_whatever_is_in_them(kind, texts, data):
    broken = data.draw(st.sets(st.integers(0, len(texts) - 1)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if kind == "jsonl":
            bad_rows = [b'{"text": 3}\n', b"\xff\xfe\n", b"{\n", b'{"body": "x"}\n', b"[]\n"]
            parts = [
                data.draw(st.sampled_from(bad_rows)) if i in broken else jsonl([text])
                for i, text in enumerate(texts)
            ]
            (folder / "a.jsonl").write_bytes(b"".join(parts))
        else:
            values = [None if i in broken else text for i, text in enumerate(texts)]
            write(folder, kind, "a", values)
        rows, bad = read(source_of(folder))
    assert len(rows) + len(bad) == len(texts)
    unusable = broken | {i for i, text in enumerate(texts) if "\0" in text}
    assert {int(where.split(":")[1]) - 1 for where, _ in bad} == unusable
    assert [text for _, text in rows] == [t for i, t in enumerate(texts) if i not in unusable]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS), seed=st.integers(0, 10**6), size=st.integers(1, 40),
    flips=st.integers(1, 5),
)  # fmt: skip
def test_random_damage_is_never_an_error_and_never_doubles_a_row(kind, seed, size, flips):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, kind, "a", [f"text {rng.random()} of row {i}" for i in range(size)])
        path = folder / f"a.{kind}"
        damaged = bytearray(path.read_bytes())
        for _ in range(flips):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.randrange(1, len(damaged) + 1)])
        try:
            rows, bad = read(source_of(folder))
        except DataError as error:
            assert "text_field" in str(error)  # the damage renamed or retyped the column
            return
    places = [where for where, _ in rows + bad]
    assert len(places) == len(set(places))
    if kind == "txt":
        assert len(places) == 1


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst"])
def test_a_cut_in_a_compressed_file_is_seen_wherever_it_falls(tmp_path, kind):
    texts = [f"line {i} {random.Random(i).random()}" for i in range(3_000)]
    write(tmp_path, kind, "a", texts)
    path = tmp_path / f"a.{kind}"
    data = path.read_bytes()
    for keep in (len(data) // 3, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:keep])
        rows, bad = read(source_of(tmp_path))
        assert rows == [(f"a.{kind}:{i + 1}", text) for i, text in enumerate(texts[: len(rows)])]
        assert "breaks here" in bad[-1][1]


def test_zstd_frames_one_after_the_other_are_one_file(tmp_path):
    frames = [zstandard.compress(jsonl([f"frame {i}"])) for i in range(3)]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
    assert [text for _, text in read(source_of(tmp_path))[0]] == ["frame 0", "frame 1", "frame 2"]


def test_an_overlong_row_is_quarantined_without_being_held(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LARGEST_ROW", 1_000)
    monkeypatch.setattr(lines, "_BLOCK", 64)
    (tmp_path / "a.jsonl").write_bytes(
        jsonl(["one"]) + jsonl(["x" * 50_000]) + jsonl(["two"]) + jsonl(["y" * 2_000]).strip()
    )
    rows, bad = read(source_of(tmp_path))
    assert rows == [("a.jsonl:1", "one"), ("a.jsonl:3", "two")]
    assert bad == [(f"a.jsonl:{n}", "the row is longer than 1,000 bytes") for n in (2, 4)]


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.sampled_from("aé\n漢🙂 "), min_size=60, max_size=400), count=st.integers(0, 40)
)
def test_a_large_text_file_is_rows_of_lines_that_join_to_the_file(text, count):
    patch = pytest.MonkeyPatch()
    patch.setattr(lines, "WHOLE_TEXT", 50)
    patch.setattr(lines, "PIECE", 16)
    with tempfile.TemporaryDirectory() as name, patch.context():
        (Path(name) / "a.txt").write_bytes(text.encode())
        source = source_of(name)
        rows, bad = read(source)
        assert "".join(row for _, row in rows) == text and not bad
        assert [where for where, _ in rows] == [f"a.txt:{i + 1}" for i in range(len(rows))]
        stream = RowStream(source, lambda *where: None)
        first = list(itertools.islice(stream, count))
        rest, _ = read(source, cursor=stream.cursor)
        assert rest == rows[len(first) :]
    patch.undo()


def test_a_bad_byte_costs_one_piece_of_a_large_text_file(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "WHOLE_TEXT", 50)
    monkeypatch.setattr(lines, "PIECE", 20)
    (tmp_path / "a.txt").write_bytes(
        b"0123456789012345\n" * 3 + b"caf\xe9 89012345678\n" + b"z" * 9
    )
    rows, bad = read(source_of(tmp_path))
    assert [where for where, _ in rows] == [f"a.txt:{n}" for n in (1, 2, 3, 5)]
    assert [where for where, _ in bad] == ["a.txt:4"]


def save_data_set(folder, files, extra=()):
    """The layout of datasets.save_to_disk."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{len(files):05d}.arrow" for i in range(len(files))]
    for name, texts in zip(names, files, strict=True):
        (folder / name).write_bytes(arrow(texts))
    for name in extra:
        (folder / name).write_bytes(arrow(["from a cache"]))
    (folder / "state.json").write_text(json.dumps({
        "_data_files": [{"filename": name} for name in names], "_fingerprint": "0" * 16,
        "_format_columns": None, "_format_kwargs": {}, "_format_type": None,
        "_output_all_columns": False, "_split": None,
    }))  # fmt: skip
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))


def test_a_saved_data_set_is_its_data_files_and_not_its_caches(tmp_path):
    save_data_set(tmp_path / "set", [["a", "b"], ["c"]], extra=["cache-1234.arrow"])
    assert [text for _, text in read(source_of(tmp_path / "set"))[0]] == ["a", "b", "c"]
    (tmp_path / "set" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError, match=r"lists .*data-00001-of-00002\.arrow, which is not there"):
        read(source_of(tmp_path / "set"))


def test_one_split_of_a_saved_dictionary_is_read(tmp_path):
    save_data_set(tmp_path / "set" / "train", [["a"]])
    save_data_set(tmp_path / "set" / "test", [["held out"]])
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert [text for _, text in read(source_of(tmp_path / "set"))[0]] == ["a"]
    held_out = source_of(tmp_path / "set", split="test")
    assert [text for _, text in read(held_out)[0]] == ["held out"]
    with pytest.raises(DataError, match=r"has the splits \['train', 'test'\], not 'validation'"):
        read(source_of(tmp_path / "set", split="validation"))


@pytest.mark.parametrize("content", ["{", "[]", '{"splits": "train"}', '{"splits": [1]}'])
def test_a_damaged_dictionary_file_is_refused_by_name(tmp_path, content):
    save_data_set(tmp_path / "set" / "train", [["a"]])
    (tmp_path / "set" / "dataset_dict.json").write_text(content)
    with pytest.raises(DataError, match=r"dataset_dict\.json"):
        read(source_of(tmp_path / "set"))


def test_an_arrow_file_of_the_random_access_kind_is_read_too(tmp_path):
    table = pa.table({"text": [f"t{i}" for i in range(10)]})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    source = source_of(tmp_path)
    stream = RowStream(source, lambda *where: None)
    assert [row.text for row in itertools.islice(stream, 5)] == [f"t{i}" for i in range(5)]
    rest, _ = read(source, cursor=stream.cursor)
    assert [text for _, text in rest] == [f"t{i}" for i in range(5, 10)]


def test_an_arrow_file_without_the_column_is_refused(tmp_path):
    write(tmp_path, "arrow", "a", ["x"])
    with pytest.raises(DataError, match=r"a\.arrow has no column 'body' \(it has \['n', 'text'\]"):
        read(source_of(tmp_path, text_field="body"))
