import pytest
from data_parts import json_lines, make_recipe

from longstride.data.corpus import build_corpus
from longstride.errors import DataError
from longstride.store.artifacts import open_artifact
from longstride.store.files import read_jsonl
from schemas.rows import Document


def build(recipe, out):
    manifest = build_corpus(recipe, out)
    return manifest, list(read_jsonl(out / "documents.jsonl", Document))


def only_files(folder, **data):
    sources = [{"kind": "files", "name": "mine", "domain": "web", "uri": str(folder)}]
    return make_recipe(
        folder,
        data={
            "sources": sources,
            "mixture": {"web": 1.0},
            "characters": 10_000,
            "cleaning": None,
            **data,
        },
    )


def test_the_corpus_meets_the_target_shares_of_characters(recipe, tmp_path):
    _, documents = build(recipe, tmp_path)
    total = sum(len(d.text) for d in documents)
    reasoning = sum(len(d.text) for d in documents if d.domain == "reasoning")
    assert total == pytest.approx(60_000, rel=0.01)
    assert reasoning / total == pytest.approx(0.3, abs=0.01)


def test_the_corpus_is_a_whole_artifact_with_unique_documents(recipe, tmp_path):
    manifest, documents = build(recipe, tmp_path)
    assert open_artifact(tmp_path, "documents") == manifest
    assert manifest.counts["documents"] == len(documents) == len({d.id for d in documents})
    assert len({d.sha256 for d in documents}) == len(documents)
    assert max(len(d.text) for d in documents) <= 1_500


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(recipe, tmp_path):
    first, _ = build(recipe, tmp_path / "a")
    again, _ = build(recipe, tmp_path / "b")
    other, _ = build(recipe.model_copy(update={"seed": 8}), tmp_path / "c")
    assert first == again
    assert first.files["documents.jsonl"] != other.files["documents.jsonl"]


def test_rows_that_differ_only_in_blanks_and_case_are_one(prose_folder, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for path in prose_folder.iterdir():
        (folder / path.name).write_text(path.read_text())
    text = (folder / "chapter-00.txt").read_text()
    (folder / "copy.txt").write_text(text.upper().replace(" ", "  "))
    recipe = only_files(folder, characters=100_000, document_characters=20_000)
    manifest, _ = build(recipe, tmp_path / "out")
    assert manifest.counts["dropped_duplicate"] == 1


def test_rows_in_equal_rows_out_plus_quarantined(prose_folder, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for path in sorted(prose_folder.iterdir())[:20]:
        (folder / path.name).write_text(path.read_text())
    (folder / "broken.txt").write_bytes(b"\xff\xfe")
    manifest, _ = build(only_files(folder), tmp_path / "out")
    assert manifest.counts["rows_read"] == 21
    assert json_lines(tmp_path / "out" / "quarantine.jsonl") == [
        {
            "source": "mine",
            "where": "broken.txt",
            "reason": "not valid UTF-8 (line 1, byte 0: invalid start byte)",
        }
    ]


def test_text_is_normalised(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    lines = "".join(f"cafe\u0301 {number}\x0c  \r\n" for number in range(3_000))
    (folder / "a.txt").write_bytes(f"\ufeff{lines}".encode())
    _, documents = build(only_files(folder), tmp_path / "out")
    first = min(documents, key=lambda document: document.id)
    assert first.text.startswith("caf\u00e9 0\ncaf\u00e9 1\ncaf\u00e9 2\n")


def test_an_empty_source_is_refused_by_name(tmp_path):
    (tmp_path / "a.txt").write_text("too short")
    with pytest.raises(DataError, match="source 'mine' yields no document of at least 80 char"):
        build(only_files(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_source_of_broken_rows_is_refused_with_file_row_and_reason(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "caf\xe9"}\n' * 3)
    with pytest.raises(DataError, match=r"all 3 rows are unusable, first a\.jsonl:1: not valid"):
        build(only_files(tmp_path), tmp_path / "out")


def test_a_domain_short_of_text_names_what_is_there_and_what_is_needed(prose_folder, tmp_path):
    recipe = only_files(prose_folder, characters=10_000_000)
    with pytest.raises(DataError, match=r"'web' needs 10,000,000 characters .* have 1\d\d,\d\d\d"):
        build(recipe, tmp_path)


def test_worked_problems_stay_inside_the_sft_split(recipe, tmp_path):
    from longstride.data.tasks import split_of

    _, documents = build(recipe, tmp_path)
    sheets = [d.text for d in documents if d.domain == "reasoning"]
    lines = [line for text in sheets for line in text.splitlines() if line.startswith("State")]
    assert len(lines) > 50
    assert {split_of(line) for line in lines if line.endswith("=")} == {"sft"}
