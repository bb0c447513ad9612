"""Real parts shared by the tests of the data room."""

from pathlib import Path

import pytest
from data_parts import PROSE, make_recipe

from longstride.store.artifacts import publish
from longstride.store.files import write_jsonl
from longstride.tokens.tokenizer import Tokenizer
from schemas.model import TokenizerConfig
from schemas.recipe import Recipe
from schemas.rows import Document


@pytest.fixture(scope="session")
def prose_folder(tmp_path_factory) -> Path:
    """Sixty different plain text files of some 2,000 characters."""
    folder = tmp_path_factory.mktemp("prose")
    for number in range(60):
        text = "".join(PROSE.format(n=number * 100 + line) for line in range(12))
        (folder / f"chapter-{number:02d}.txt").write_text(text)
    return folder


@pytest.fixture
def recipe(prose_folder) -> Recipe:
    """A recipe that reads in a moment."""
    return make_recipe(prose_folder)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory, prose_folder) -> Tokenizer:
    texts = [path.read_text() for path in sorted(prose_folder.glob("*.txt"))]
    config = TokenizerConfig(vocab_size=400)
    return Tokenizer.train(texts, config, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def publish_documents(tmp_path):
    """Write a documents artifact from (source, path, text) triples."""

    def write(*triples: tuple[str, str, str]) -> Path:
        folder = tmp_path / "documents"
        rows = [
            Document(id=f"{source}/{path}", text=text, domain="web", source=source, path=path)
            for source, path, text in triples
        ]
        write_jsonl(folder / "documents.jsonl", rows)
        publish(folder, "documents", "corpus")
        return folder

    return write
