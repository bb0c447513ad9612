import pytest
from s3_servers import BUCKET, ministack, moto, rclone, running

from longstride.store.locations import s3_files


@pytest.fixture(scope="session")
def moto_server():
    with running(moto()) as server:
        yield server


@pytest.fixture(scope="session")
def ministack_server(tmp_path_factory):
    with running(ministack(tmp_path_factory.mktemp("ministack"))) as server:
        yield server


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory):
    with running(rclone(tmp_path_factory.mktemp("rclone"))) as server:
        yield server


@pytest.fixture
def use(monkeypatch):
    """Point every S3 client of this process at a server, with a bucket there."""
    import s3fs

    def point_at(server, **changes):
        for name, value in {**server.settings, **changes}.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        if not changes:
            files = s3_files()
            if not files.exists(BUCKET):
                files.mkdir(BUCKET)
        return f"s3://{BUCKET}"

    yield point_at
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(params=["disk", "moto", "ministack", "rclone"])
def place(request, tmp_path, use):
    """A location of each kind: (uri, whether there is only one writer)."""
    if request.param == "disk":
        return str(tmp_path / "store"), False
    server = request.getfixturevalue(f"{request.param}_server")
    return f"{use(server)}/{tmp_path.name}", request.param == "rclone"


@pytest.fixture
def directory(tmp_path):
    """A directory to publish: small files, a folder, and one large enough to go up in parts."""
    folder = tmp_path / "checkpoint"
    (folder / "shards").mkdir(parents=True)
    (folder / "checkpoint.json").write_text('{"step": 3}')
    (folder / "empty").write_bytes(b"")
    (folder / "shards" / "weights.safetensors").write_bytes(bytes(range(256)) * (34 << 12))
    (folder / ".hidden").write_text("stays behind")
    return folder
