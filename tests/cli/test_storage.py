"""`longstride push`, `pull`, `store` and `run --mirror` against a real S3 server."""

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "store"))

import s3fs
from s3_servers import BUCKET, SETTINGS, moto, running

from longstride.cli.main import main
from longstride.store.locations import s3_files
from longstride.store.objects import ObjectStore


@pytest.fixture(scope="module")
def server():
    with running(moto()) as started:
        yield started


@pytest.fixture
def place(server, monkeypatch, tmp_path):
    for name, value in server.settings.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    if not s3_files().exists(BUCKET):
        s3_files().mkdir(BUCKET)
    yield f"s3://{BUCKET}/{tmp_path.name}"
    s3fs.S3FileSystem.clear_instance_cache()


def published(place, folder):
    folder.mkdir()
    (folder / "weights").write_text("0123456789")
    ObjectStore(place, "trainer").publish("checkpoints/step-1", folder)


def damage(place):
    (one,) = [o.name for o in ObjectStore(place, "me")._backend.names("objects/")]
    s3_files().pipe_file(f"{place.removeprefix('s3://')}/{one}", b"9876543210")


def test_check_says_what_the_endpoint_can_do(place, capsys):
    assert main(["store", "check", place]) == 0
    assert "conditional writes: honoured" in capsys.readouterr().out


def test_list_names_size_and_publisher(place, tmp_path, capsys):
    published(place, tmp_path / "data")
    assert main(["store", "list", place]) == 0
    line = capsys.readouterr().out
    assert re.search(r"10\s+1\s+checkpoints/step-1  \(trainer\)", line)


def test_verify_finds_damage_and_drops_it_when_asked(place, tmp_path, capsys):
    published(place, tmp_path / "data")
    assert main(["store", "verify", place]) == 0
    damage(place)
    assert main(["store", "verify", place, "--drop-damaged"]) == 1
    out = capsys.readouterr().out
    assert "checkpoints/step-1: weights is damaged" in out and "0 of 1" in out
    ObjectStore(place, "trainer").publish("checkpoints/step-1", tmp_path / "data")
    assert main(["store", "verify", place]) == 0


def test_clean_deletes_only_what_nothing_refers_to(place, tmp_path, capsys):
    published(place, tmp_path / "data")
    ObjectStore(place, "trainer").withdraw("checkpoints/step-1")
    assert main(["store", "clean", place]) == 0
    assert "deleted 0 objects" in capsys.readouterr().out
    assert main(["store", "clean", place, "--older-than", "0s"]) == 0
    assert "deleted 1 objects" in capsys.readouterr().out


def test_an_age_that_is_none_is_refused(place, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["store", "clean", place, "--older-than", "soon"])
    assert caught.value.code == 2 and "write 12h or 7d" in capsys.readouterr().err


def test_a_mistake_is_told_in_one_line_without_secrets(place, capsys):
    assert main(["store", "check", "s3://no-such-bucket/x"]) == 1
    told = capsys.readouterr().err
    assert "create the bucket 'no-such-bucket'" in told and told.count("\n") == 1
    assert SETTINGS["AWS_SECRET_ACCESS_KEY"] not in told


def test_single_writer_without_a_mirror_is_refused(tmp_path, capsys):
    code = main(["run", "tiny", "--runs", str(tmp_path), "--single-writer"])
    assert code == 2 and "--mirror, which is not given" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
