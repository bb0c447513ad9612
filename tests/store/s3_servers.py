"""Real S3 servers on loopback, as processes of their own: started, killed and started again."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

SETTINGS = {
    "AWS_ACCESS_KEY_ID": "canary-key",
    "AWS_SECRET_ACCESS_KEY": "canary-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
BUCKET = "artifacts"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_until_open(port, process, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode}")
        with socket.socket() as one:
            one.settimeout(0.5)
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port} after {seconds} s")


class Server:
    """One server; `kill` is SIGKILL, and `start` may follow."""

    def __init__(self, command, environment):
        self.port = free_port()
        self.command = [part.format(port=self.port) for part in command]
        self.environment = {name: v.format(port=self.port) for name, v in environment.items()}
        self.process = None

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self):
        return {**SETTINGS, "AWS_ENDPOINT_URL": self.endpoint}

    def start(self):
        self.process = subprocess.Popen(
            self.command,
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until_open(self.port, self.process)

    def kill(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def moto():
    """Keeps its objects in memory."""
    return Server([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "{port}"], {})


def ministack(folder: Path):
    """Keeps its objects on disk."""
    return Server(
        [str(stores_bin() / "ministack")],
        {
            "GATEWAY_PORT": "{port}", "EDGE_PORT": "{port}", "S3_PERSIST": "1",
            "S3_DATA_DIR": str(folder / "objects"), "SERVICES": "s3",
            "STATE_DIR": str(folder / "state"), "PERSIST_STATE": "1",
        },
    )  # fmt: skip


def rclone(folder: Path):
    """Ignores `If-None-Match`."""
    key = f"{SETTINGS['AWS_ACCESS_KEY_ID']},{SETTINGS['AWS_SECRET_ACCESS_KEY']}"
    return Server(
        [
            str(stores_bin() / "rclone"), "serve", "s3", "--addr", "127.0.0.1:{port}",
            "--auth-key", key, str(folder),
        ],
        {},
    )  # fmt: skip


def stores_bin():
    """Programs of `make setup-stores`."""
    return Path(os.environ.get("LONGSTRIDE_STORES_BIN", ".venv-stores/bin")).resolve()


@contextmanager
def running(server):
    server.start()
    try:
        yield server
    finally:
        server.kill()
