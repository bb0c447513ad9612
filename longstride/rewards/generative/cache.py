"""Verdicts by the digest of everything that they depend on, one small file each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from longstride.errors import DataError
from longstride.store.files import atomic_write, first_problem
from schemas.base import Contract, digest_of


class CachedReply(Contract):
    """What came of one request."""

    verdict: int | str | None
    """The verdict; null when the reply was a refusal or could not be read."""
    problem: str = ""
    """Why it could not be read."""
    tokens: int = Field(default=0, ge=0)
    """Prompt and reply tokens that it cost."""


class VerdictCache:
    """A folder of replies. Files appear whole, and equal keys hold equal questions."""

    def __init__(self, folder: Path) -> None:
        """Use a folder, which need not exist."""
        self._folder = folder

    def key(self, question: dict[str, Any]) -> str:
        """Digest of a question: model, template, sampling, seed and texts."""
        return digest_of(question).removeprefix("sha256:")

    def get(self, key: str) -> CachedReply | None:
        """The reply under a key, if there is one.

        Raises:
            DataError: the file is not what was written.
        """
        path = self._path(key)
        try:
            return CachedReply.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise DataError(
                f"{path} is no cached reply of a judge: {first_problem(error)}; remove it"
            ) from error

    def put(self, key: str, reply: CachedReply) -> None:
        """Keep a reply."""
        with atomic_write(self._path(key)) as stream:
            stream.write(reply.model_dump_json())

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"
