"""The command on a pseudo-terminal, as a person sees it."""

import os
import pty
import subprocess
import threading

from micro_run import command, environment


class Terminal:
    """A command that runs on a terminal of its own; `output` grows while it does."""

    def __init__(self, *arguments: object) -> None:
        self.output = ""
        ours, theirs = pty.openpty()
        variables = environment() | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
        self.process = subprocess.Popen(
            command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=variables
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._reader.start()

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            while True:
                try:
                    data = stream.read(65536)
                except OSError:  # Linux says EIO when the last writer has closed
                    return
                if not data:
                    return
                self.output += data.decode("utf-8", "replace")

    def wait(self, seconds: float) -> int:
        """Exit code."""
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code
