"""Publishing directories on a disk and on real S3 servers, with everything that can go wrong."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import s3fs
from hypothesis import given
from hypothesis import strategies as st
from s3_servers import BUCKET, SETTINGS, ministack, running

from longstride.errors import ConcurrentWrite, DataError, StoreError
from longstride.store.artifacts import file_record
from longstride.store.locations import parse_location, require_name, s3_files
from longstride.store.objects import ObjectStore

PUBLISH = """
import sys
from pathlib import Path
from longstride.store.objects import ObjectStore
ObjectStore(sys.argv[1], "first machine").publish("run/step-3", Path(sys.argv[2]))
"""


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def small(folder, **texts):
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def objects_of(store):
    return {one.name: one for one in store._backend.names("objects/")}


def test_a_directory_comes_back_as_it_was(place, directory, tmp_path):
    uri, alone = place
    store = ObjectStore(uri, "trainer", single_writer=alone)
    published = store.publish("run/step-3", directory, {"step": "3"})
    fetched = ObjectStore(uri, "reader").fetch("run/step-3", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(directory)
    assert fetched == published and fetched.facts == {"step": "3"}
    assert store.names() == store.names("run") == ["run/step-3"] and store.names("ru") == []
    assert store.verify("run/step-3") == []


def test_publishing_the_same_again_sends_nothing(place, directory):
    uri, alone = place
    first = ObjectStore(uri, "one", single_writer=alone).publish("run/a", directory)
    before = objects_of(ObjectStore(uri, "reader"))
    store = ObjectStore(uri, "another", single_writer=alone)
    again = store.publish("run/a", directory)
    store.publish("run/b", directory)
    assert again == first and again.publisher == "one"
    assert objects_of(store) == before


def test_an_endpoint_that_ignores_conditions_is_noticed_and_refused(rclone_server, use, tmp_path):
    uri = f"{use(rclone_server)}/{tmp_path.name}"
    store = ObjectStore(uri, "trainer")
    assert store.probe() is False
    with pytest.raises(StoreError, match=r"ignores conditional writes .*--single-writer"):
        store.publish("run/a", small(tmp_path / "data", x="1"))
    assert store.names() == [] and objects_of(store) == {}


def test_other_endpoints_honour_conditions(tmp_path, use, moto_server, ministack_server):
    assert ObjectStore(str(tmp_path), "me").probe()
    for server in (moto_server, ministack_server):
        assert ObjectStore(f"{use(server)}/probe", "me").probe()


@pytest.mark.parametrize("kind", ["disk", "moto", "ministack"])
def test_of_racing_writers_one_wins_and_the_others_are_told_who(kind, request, tmp_path, use):
    server = None if kind == "disk" else request.getfixturevalue(f"{kind}_server")
    uri = str(tmp_path / "store") if server is None else f"{use(server)}/{tmp_path.name}"
    folders = [small(tmp_path / f"from-{i}", data=f"content {i}") for i in range(8)]
    gate, outcomes = threading.Barrier(8), {}

    def write(number):
        store = ObjectStore(uri, f"writer-{number}")
        store.probe()
        gate.wait()
        try:
            outcomes[number] = store.publish("run/contested", folders[number])
        except ConcurrentWrite as error:
            outcomes[number] = str(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for number, found in outcomes.items() if not isinstance(found, str)]
    assert len(winners) == 1 and len(outcomes) == 8
    told = [found for found in outcomes.values() if isinstance(found, str)]
    assert all(f"published by writer-{winners[0]} with other content" in text for text in told)
    ObjectStore(uri, "reader").fetch("run/contested", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folders[winners[0]])


def large_directory(tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    for number in range(6):
        (folder / f"shard-{number}").write_bytes(os.urandom(1 << 20) * 40)
    return folder


def start_publishing(uri, folder, server):
    return subprocess.Popen(
        [sys.executable, "-c", PUBLISH, uri, str(folder)],
        env={**os.environ, **server.settings},
        stderr=subprocess.DEVNULL,
    )


def wait_for_objects(store, count, seconds=60):
    end = time.monotonic() + seconds
    while len(objects_of(store)) < count:
        assert time.monotonic() < end, f"no {count} objects after {seconds} s"
        time.sleep(0.01)


def test_an_upload_that_was_killed_goes_on_where_it_was(tmp_path, use, moto_server):
    uri, folder = f"{use(moto_server)}/{tmp_path.name}", large_directory(tmp_path)
    store = ObjectStore(uri, "second machine")
    with start_publishing(uri, folder, moto_server) as process:
        wait_for_objects(store, 1)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    before = objects_of(store)
    assert store.names() == [] and 1 <= len(before) < 6, "nothing half-published is visible"
    with pytest.raises(DataError, match="nothing published"):
        store.fetch("run/step-3", tmp_path / "early")

    store.publish("run/step-3", folder)
    after = objects_of(store)
    assert {name: after[name] for name in before} == before, "what was there is not sent again"
    store.fetch("run/step-3", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)


def test_clean_up_drops_uploads_that_never_ended_and_only_ours(tmp_path, use, ministack_server):
    store = ObjectStore(f"{use(ministack_server)}/{tmp_path.name}", "me")
    files = s3_files()
    for key in (f"{tmp_path.name}/objects/ab/abc", "somebody/elses"):
        files.call_s3("create_multipart_upload", Bucket=BUCKET, Key=key)
    assert store.collect_garbage(older_than_seconds=3600) == (0, 0)
    assert store.collect_garbage(older_than_seconds=0) == (0, 1)
    left = [upload["Key"] for upload in files.list_multipart_uploads(BUCKET)]
    assert "somebody/elses" in left and not any(key.startswith(tmp_path.name) for key in left)


def test_a_server_that_is_killed_and_comes_back_loses_nothing_published(tmp_path, use):
    with running(ministack(tmp_path / "state")) as server:
        uri = f"{use(server)}/crash"
        store = ObjectStore(uri, "trainer")
        store.publish("run/step-1", small(tmp_path / "one", weights="1"))
        folder = large_directory(tmp_path)
        with start_publishing(uri, folder, server) as process:
            wait_for_objects(store, 2)
            server.kill()
        assert process.returncode == 1, "a dead server must fail the writer"
        server.start()
        store = ObjectStore(f"{use(server)}/crash", "trainer")
        assert store.names() == ["run/step-1"] and store.verify("run/step-1") == []
        store.publish("run/step-3", folder)
        assert store.verify("run/step-3") == []


def damaged_store(tmp_path):
    store = ObjectStore(str(tmp_path / "store"), "trainer")
    folder = small(tmp_path / "data", weights="0123456789", config="{}")
    record = store.publish("run/a", folder).files["weights"].sha256
    return store, folder, tmp_path / "store" / "objects" / record[:2] / record


@pytest.mark.parametrize("bytes_there", [b"0123456780", b"01234", b""])
def test_a_damaged_object_is_refused_and_leaves_nothing_behind(tmp_path, bytes_there):
    store, _, path = damaged_store(tmp_path)
    path.write_bytes(bytes_there)
    with pytest.raises(DataError, match=r"weights of run/a .* is damaged"):
        store.fetch("run/a", tmp_path / "back")
    assert "weights" not in contents(tmp_path / "back")
    assert not list((tmp_path / "back").glob(".*"))
    assert store.verify("run/a") == ["weights is damaged"]


def test_a_lost_or_damaged_object_is_mended_by_publishing_again(tmp_path):
    store, folder, path = damaged_store(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"weights of run/a is missing .* publish it again"):
        store.fetch("run/a", tmp_path / "back")
    store.publish("run/a", folder)
    assert store.verify("run/a") == []
    path.write_bytes(b"0123456780")
    assert store.verify("run/a", drop_damaged=True) == ["weights is damaged"]
    store.publish("run/a", folder)
    store.fetch("run/a", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)


def test_clean_up_spares_what_is_published_shared_or_on_its_way(tmp_path):
    store = ObjectStore(str(tmp_path / "store"), "trainer")
    store.publish("run/a", small(tmp_path / "a", shared="s", own="a"))
    store.publish("run/b", small(tmp_path / "b", shared="s"))
    store.withdraw("run/a")
    on_its_way = small(tmp_path / "c", coming="c")
    record = {"coming": file_record(on_its_way / "coming")}
    with store._announced(record):
        store._send(on_its_way / "coming", record["coming"])
        assert store.collect_garbage(older_than_seconds=3600) == (0, 0), "all are young"
        assert store.collect_garbage(older_than_seconds=0) == (1, 0), "only run/a's own file"
        assert len(objects_of(store)) == 2
    assert store.collect_garbage(older_than_seconds=0) == (1, 0)
    assert store.verify("run/b") == []


def test_files_that_are_here_already_are_not_fetched_again(tmp_path):
    store, folder, path = damaged_store(tmp_path)
    store.fetch("run/a", tmp_path / "back")
    path.unlink()
    store.fetch("run/a", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(folder)


def test_nothing_can_be_published_from_an_empty_or_missing_directory(tmp_path):
    store = ObjectStore(str(tmp_path / "store"), "trainer")
    with pytest.raises(DataError, match="missing or empty"):
        store.publish("run/a", tmp_path / "absent")


# ---- mistakes of the operator ------------------------------------------------------------------


def test_a_missing_bucket_is_named(moto_server, use):
    use(moto_server)
    store = ObjectStore("s3://no-such-bucket/x", "me")
    for action in (store.probe, store.names, lambda: store.fetch("a", Path("unused"))):
        with pytest.raises(StoreError, match="create the bucket 'no-such-bucket'"):
            action()


def test_wrong_credentials_are_told_and_never_shown(rclone_server, use):
    uri = use(rclone_server)
    use(rclone_server, AWS_SECRET_ACCESS_KEY="canary-wrong")
    with pytest.raises(StoreError, match="does not know these credentials") as caught:
        ObjectStore(uri, "me").probe()
    shown = f"{caught.value} {caught.value.__cause__}"
    assert "canary-wrong" not in shown and SETTINGS["AWS_SECRET_ACCESS_KEY"] not in shown


def test_missing_credentials_are_told(moto_server, use, monkeypatch, tmp_path):
    uri = use(moto_server)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        ObjectStore(uri, "me").names()


def test_an_endpoint_that_does_not_answer_is_told(moto_server, use):
    uri = use(moto_server, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    with pytest.raises(StoreError, match="check that AWS_ENDPOINT_URL is right"):
        ObjectStore(uri, "me").names()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=r"cannot write probes/.*Not a directory"):
        ObjectStore(str(tmp_path / "file" / "store"), "me").probe()


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("gs://bucket/x", "scheme 'gs'"),
        ("s3://", "names no bucket"),
        ("s3://UPPER/x", "names no bucket"),
        ("s3://key:secret@bucket/x", "credentials"),
        ("s3://bucket/x?versionId=1", "query"),
        ("s3://bucket/../x", "not a name"),
        ("s3://bucket/%2e%2e/x", "not a name"),
        ("file://host/x", "names the host 'host'"),
    ],
)
def test_what_is_no_place_is_refused(uri, told):
    with pytest.raises(StoreError, match=told) as caught:
        parse_location(uri)
    assert "secret" not in str(caught.value)


@given(st.text(min_size=0, max_size=40))
def test_a_name_never_leaves_the_store(text):
    try:
        name = require_name(text)
    except StoreError:
        return
    resolved = os.path.normpath(os.path.join("/root", name))
    assert resolved == f"/root/{name}" and "\\" not in name and "%" not in name


@pytest.mark.parametrize(
    "name", ["", "..", "/etc/passwd", "a//b", "a/../b", "a\\b", "a\0", ".x", "é"]
)
def test_names_that_could_reach_outside_are_refused(name):
    with pytest.raises(StoreError, match="is not a name"):
        require_name(name)


def test_a_record_cannot_write_outside_of_the_directory_it_is_fetched_to(tmp_path):
    store, _, _ = damaged_store(tmp_path)
    path = tmp_path / "store" / "published" / "run" / "a.json"
    record = json.loads(path.read_text())
    record["files"]["../outside"] = record["files"].pop("weights")
    path.write_text(json.dumps(record))
    with pytest.raises(StoreError, match=r"'../outside' is not a name"):
        store.fetch("run/a", tmp_path / "back")
    assert not (tmp_path / "outside").exists()


def test_a_damaged_record_is_told(tmp_path):
    store, _, _ = damaged_store(tmp_path)
    (tmp_path / "store" / "published" / "run" / "a.json").write_text("{")
    with pytest.raises(DataError, match=r"the record of run/a .* is damaged"):
        store.find("run/a")
