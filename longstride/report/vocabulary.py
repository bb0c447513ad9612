"""Text of token ids straight from `tokenizer.json`, one token at a time, bytes and all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from longstride.errors import DataError
from longstride.store.files import read_text


def token_texts(path: Path, ids: Iterable[int]) -> dict[str, str]:
    r"""Map each id to its text, for byte-level, metaspace and plain vocabularies.

    A tokenizer's own `decode` of a single id drops spaces and hides broken UTF-8; a reader who
    looks at single tokens needs both. Bytes that are no character show as `\xe2`.

    Raises:
        DataError: The file is missing, not JSON, or holds no vocabulary.
    """
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON (line {error.lineno}: {error.msg})") from error
    pieces = _pieces(content, path)
    decoders = _decoders(content.get("decoder"))
    texts = {}
    for token in set(ids):
        if token in pieces:
            piece, special = pieces[token]
            texts[str(token)] = piece if special else _readable(piece, decoders)
    return texts


def _pieces(content: Any, path: Path) -> dict[int, tuple[str, bool]]:
    """Piece and whether it was added verbatim, by id."""
    model = content.get("model") if isinstance(content, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        pieces = {number: (piece, False) for piece, number in vocabulary.items()}
    elif isinstance(vocabulary, list):
        pieces = {number: (entry[0], False) for number, entry in enumerate(vocabulary) if entry}
    else:
        raise DataError(f"{path} holds no model.vocab; write it with tokenizers' Tokenizer.save")
    for added in content.get("added_tokens") or []:
        if isinstance(added, dict) and "id" in added and "content" in added:
            pieces[added["id"]] = (added["content"], True)
    return pieces


def _decoders(decoder: Any) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    nested = decoder.get("decoders") or []
    return {str(decoder.get("type"))}.union(*(_decoders(d) for d in nested))


def _readable(piece: str, decoders: set[str]) -> str:
    if "ByteLevel" in decoders:
        characters = _byte_of()
        if all(c in characters for c in piece):
            raw = bytes(characters[c] for c in piece)
            return raw.decode("utf-8", errors="backslashreplace")
    if "Metaspace" in decoders or "Replace" in decoders:
        return piece.replace("\u2581", " ")
    if "WordPiece" in decoders:
        return piece.removeprefix("##")
    return piece


def _byte_of() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the others sit from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if b not in printable)
    return table | {chr(256 + n): b for n, b in enumerate(others)}
