"""A byte-level BPE tokenizer, trained by the pipeline on its own corpus.

Special tokens are ids that only `special` hands out. Text never produces them, whatever it
contains: the literal string `<|end|>` in a document encodes to ordinary tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from longstride.errors import DataError
from schemas.base import canonical_json
from schemas.model import TokenizerConfig

PAD: Final = "<|pad|>"
END_OF_TEXT: Final = "<|end_of_text|>"
SYSTEM: Final = "<|system|>"
USER: Final = "<|user|>"
ASSISTANT: Final = "<|assistant|>"
END: Final = "<|end|>"
THINK: Final = "<think>"
END_THINK: Final = "</think>"
SPECIALS: Final = (PAD, END_OF_TEXT, SYSTEM, USER, ASSISTANT, END, THINK, END_THINK)
"""Special tokens; a trained tokenizer gives them the ids 0 to 7 in this order."""
TOKENIZER_FILE: Final = "tokenizer.json"
CONFIG_FILE: Final = "tokenizer_config.json"
_FIX: Final = "restore it from its source, or rerun the step that trains the tokenizer"


def _byte_alphabet() -> dict[str, int]:
    """Byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(256 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


_BYTE_OF: Final = _byte_alphabet()


class Tokenizer:
    """Text to ids and back. Make one with `train` or `load`."""

    def __init__(self, backend: Backend, digest: str) -> None:
        """Wrap a loaded backend; `digest` identifies its file."""
        self._backend = backend
        # Without this the backend would turn literal special tokens inside text into their ids.
        self._backend.encode_special_tokens = True
        self.digest: Final = digest
        """sha256 of `tokenizer.json`, as `sha256:<hex>`."""
        # A missing one is -1, which no token has; reading a file refuses it.
        ids = {name: backend.token_to_id(name) for name in SPECIALS}
        self._special_ids: Final = {n: -1 if i is None else int(i) for n, i in ids.items()}
        self._names: Final = {index: name for name, index in self._special_ids.items()}
        self.vocab_size: Final = int(backend.get_vocab_size(with_added_tokens=True))
        """Ids are in [0, vocab_size)."""
        self.pad_id: Final = self._special_ids[PAD]
        """Fills rows on the right; never predicted."""
        self.eos_id: Final = self._special_ids[END_OF_TEXT]
        """Ends a document."""
        self.end_id: Final = self._special_ids[END]
        """Ends a turn; the stop token of generation."""
        self.think_id: Final = self._special_ids[THINK]
        """Opens the thinking of an assistant turn."""
        self.end_think_id: Final = self._special_ids[END_THINK]
        """Closes it."""

    @classmethod
    def train(
        cls, texts: Iterable[str], config: TokenizerConfig, directory: Path | str
    ) -> Tokenizer:
        """Learn merges from the first `config.training_characters` characters and save them.

        Equal texts and configuration give an equal file. A small corpus may yield fewer entries
        than `config.vocab_size`, never more.

        Raises:
            DataError: there is no text, or a text is not valid Unicode.
        """
        backend = Backend(models.BPE())
        splits: list[pre_tokenizers.PreTokenizer] = []
        if config.split_digits:
            splits.append(pre_tokenizers.Digits(individual_digits=True))
        splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
        backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
            vocab_size=config.vocab_size,
            special_tokens=list(SPECIALS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        used = list(_first_characters(texts, config.training_characters))
        if not used:
            raise DataError(
                "the corpus holds no text to train a tokenizer on; add a source, or loosen the "
                "filters that emptied it"
            )
        backend.train_from_iterator(used, trainer)
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / TOKENIZER_FILE, backend.to_str(pretty=False))
        return cls._described(
            folder,
            {
                "training": config.model_dump(mode="json"),
                "trained_on_characters": sum(map(len, used)),
            },
        )

    @classmethod
    def adopt(cls, source: Path | str, directory: Path | str) -> Tokenizer:
        """Take over the tokenizer of a Hugging Face folder; missing special tokens are added.

        Ids of the source keep their meaning; new special tokens come after them.

        Raises:
            DataError: the file is missing or corrupt, or the tokenizer is not a byte-level one,
                so that some text would have no tokens.
        """
        origin = Path(source) / TOKENIZER_FILE
        backend, source_digest = _open(origin)
        backend.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / TOKENIZER_FILE, backend.to_str(pretty=False))
        adopted = cls._described(folder, {"adopted_from": source_digest})
        probe = "\x00 caf\u00e9 \u4e16\u754c \U0001f600"
        if adopted.decode(adopted.encode(probe)) != probe:
            raise DataError(
                f"{origin} does not give {probe!r} back after encoding and decoding it; only "
                "byte-level tokenizers are supported"
            )
        return adopted

    @classmethod
    def _described(cls, folder: Path, origin: dict[str, object]) -> Tokenizer:
        """Write the description beside `tokenizer.json` and return the tokenizer."""
        loaded = cls._read(folder)
        described = {
            "vocab_size": loaded.vocab_size,
            "digest": loaded.digest,
            "special_tokens": loaded._special_ids,
            **origin,
        }
        _write(folder / CONFIG_FILE, canonical_json(described))
        return loaded

    @classmethod
    def load(cls, directory: Path | str) -> Tokenizer:
        """Read a tokenizer directory and check that it is ours and unchanged.

        Raises:
            DataError: a file is missing or corrupt, the special tokens are not where they belong,
                or the digest differs from the one that training wrote.
        """
        folder = Path(directory)
        tokenizer = cls._read(folder)
        path = folder / CONFIG_FILE
        try:
            described = json.loads(path.read_text(encoding="utf-8"))
            recorded = described["digest"]
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist; {_FIX}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} cannot be read ({error}); {_FIX}") from error
        if recorded != tokenizer.digest:
            raise DataError(
                f"{folder / TOKENIZER_FILE} has digest {tokenizer.digest} but {CONFIG_FILE} "
                f"records {recorded}; {_FIX}"
            )
        return tokenizer

    @classmethod
    def _read(cls, folder: Path) -> Tokenizer:
        path = folder / TOKENIZER_FILE
        return cls(*_open(path))._checked(path)

    def _checked(self, path: Path) -> Self:
        for name, index in self._special_ids.items():
            if index < 0:
                raise DataError(
                    f"{path}: special token {name} is missing; this tokenizer was not made by "
                    f"this pipeline: {_FIX}"
                )
            if not self._names.keys().isdisjoint(self.encode(name)):
                raise DataError(f"{path}: plain text {name!r} encodes to a special token; {_FIX}")
        return self

    def special(self, name: str) -> int:
        """Return the id of a special token such as `<|user|>`."""
        if name not in self._special_ids:
            raise ValueError(
                f"{name!r} is not a special token; choose one of {', '.join(SPECIALS)}"
            )
        return self._special_ids[name]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; none of them is a special token, whatever the text holds.

        Raises:
            DataError: the text holds a lone surrogate, which is not valid Unicode.
        """
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError) as error:
            raise DataError(
                f"text starting {text[:40]!r} is not valid Unicode ({error}); drop or repair it "
                "when reading the source"
            ) from error
        return ids

    def decode(self, ids: Sequence[int], *, keep_end: bool = False) -> str:
        """Return the text of ids, special tokens as their literal names.

        Trailing `<|end|>`, `<|end_of_text|>` and padding end a text and are not part of it; they
        are left out unless `keep_end`. Bytes that are not UTF-8 become U+FFFD.

        Raises:
            DataError: an id is outside the vocabulary.
        """
        stop = len(ids)
        closing = () if keep_end else (self.pad_id, self.eos_id, self.end_id)
        while stop and ids[stop - 1] in closing:
            stop -= 1
        pieces: list[str] = []
        run: list[int] = []
        for token in ids[:stop]:
            if not 0 <= token < self.vocab_size:
                raise DataError(
                    f"token {token} is outside the vocabulary of {self.vocab_size}; decode with "
                    "the tokenizer that the ids were made with"
                )
            if token in self._names:
                pieces += (self._plain(run), self._names[token])
                run = []
            else:
                run.append(token)
        return "".join(pieces) + self._plain(run)

    def token_bytes(self, index: int) -> bytes:
        """The bytes that a token stands for; a special token's are those of its name.

        An id that no text has, which a model with a larger vocabulary may still sample, gives the
        replacement character, as in `decode`.
        """
        piece = self._backend.id_to_token(index)
        if piece is None:
            return "\ufffd".encode()
        if index in self._names:
            return str(piece).encode()
        return bytes(_BYTE_OF[c] for c in piece if c in _BYTE_OF) or str(piece).encode()

    def decode_sample(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids; padded vocabulary entries become U+FFFD.

        A model may have more rows than the tokenizer has entries (M1: 200,064 rows), and a policy
        can sample them. That is a bad answer, not a broken run.
        """
        known = self._replacement
        return self.decode([token if token < self.vocab_size else known for token in ids])

    @cached_property
    def _replacement(self) -> int:
        """A token whose bytes are no UTF-8 by themselves, which decodes to U+FFFD."""
        return next(t for t in range(self.vocab_size) if self._plain([t]) == "\ufffd")

    def _plain(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=False)) if ids else ""


def _open(path: Path) -> tuple[Backend, str]:
    """Return the backend that a `tokenizer.json` describes, and the file's digest."""
    try:
        raw = path.read_bytes()
        backend = Backend.from_buffer(raw)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; {_FIX}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); {_FIX}") from error
    return backend, "sha256:" + hashlib.sha256(raw).hexdigest()


def _first_characters(texts: Iterable[str], limit: int) -> Iterator[str]:
    left = limit
    for index, text in enumerate(texts):
        if left <= 0:
            return
        part = text[:left]
        if not part:
            continue
        try:
            part.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(
                f"training text {index} is not valid Unicode ({error}); drop or repair it when "
                "reading the source"
            ) from error
        left -= len(part)
        yield part


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
