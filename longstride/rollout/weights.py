"""Handing weights to another process as folders of safetensors, one a version."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from longstride.errors import GeneratorError
from longstride.model.huggingface import save_huggingface
from longstride.model.hybrid import HybridModel

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "longstride-weights-"
_ROOM = 3
"""Folders must fit so many times: the one in use, the one being written, and some air."""


class WeightFolders:
    """Writes each version to a folder of its own that appears complete or not at all."""

    def __init__(self, model: HybridModel, directory: str | None = None) -> None:
        """Choose where to write.

        Args:
            model: decides how much room is needed.
            directory: where the recipe says; None chooses shared memory where there is room, so
                that a sync costs no disk, else the temporary folder.
        """
        if directory is not None:
            parent = Path(directory)
            parent.mkdir(parents=True, exist_ok=True)
        else:
            _remove_orphans()
            parent = _parent_with_room(model)
        self.root = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        # mkdtemp is private to this user; a server at a URL may run as another.
        if directory is not None:
            self.root.chmod(0o755)
        self.current: Path | None = None

    def write(self, model: HybridModel, version: int) -> Path:
        """Write one version and return its folder.

        Raises:
            CheckpointError: the architecture has no Hugging Face layout.
            GeneratorError: there is no room, or the folder cannot be written.
        """
        partial, folder = self.root / f".v{version}.partial", self.root / f"v{version}"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            save_huggingface(model, partial)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(partial, folder)
        except OSError as error:
            raise GeneratorError(
                f"the weights of version {version} cannot be written to {self.root}: {error}; name "
                "another folder by rollout.generator.weights_directory"
            ) from error
        return folder

    def keep_only(self, folder: Path) -> None:
        """Remove every version but one, which the sampler has taken over."""
        for other in self.root.iterdir():
            if other != folder:
                shutil.rmtree(other)
        self.current = folder

    def remove(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.root, ignore_errors=True)


def _remove_orphans() -> None:
    """Remove the folders of processes that were killed before they could."""
    for parent in (SHARED_MEMORY, Path(tempfile.gettempdir())):
        for folder in parent.glob(f"{_PREFIX}*-*"):
            owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
            if not owner.isdigit() or _alive(int(owner)):
                continue
            # Another task may be tidying up as well; folders of other users stay.
            with suppress(FileNotFoundError):
                if folder.stat().st_uid == os.getuid():
                    shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _parent_with_room(model: HybridModel) -> Path:
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    # Containers often have 64 MB of shared memory.
    usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    if usable and shutil.disk_usage(SHARED_MEMORY).free > _ROOM * size:
        return SHARED_MEMORY
    return Path(tempfile.gettempdir())
