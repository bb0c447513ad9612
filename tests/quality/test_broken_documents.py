"""E1: faults of a corpus, each seen by exactly its check."""

import pytest
from quality_parts import judge, rewrite

from longstride.quality import measure_documents
from longstride.quality.gate import _open
from longstride.quality.subject import Subject
from longstride.quality.suites import load_suite, resolve
from longstride.store.artifacts import publish
from longstride.store.files import read_jsonl
from schemas.rows import Document

SECRET = "AKIA" + "QWERTYUIOPASDFGH"


@pytest.fixture(scope="module")
def suite(parts):
    return resolve(load_suite("E1"), parts.recipe)


def measure(parts, path):
    documents, tokenizer = _open(path, "documents"), _open(parts["tokenizer"], "tokenizer")
    return measure_documents.measure(Subject("corpus", parts.recipe, documents, tokenizer))


def failed(suite, measured):
    return {name for name, passed in judge(suite, measured).items() if not passed}


def text(number, change):
    """Change the text of some documents of running text."""

    def edit(rows):
        prose = [i for i, row in enumerate(rows) if row.domain == "book" and len(row.text) > 600]
        for i in prose[:number]:
            rows[i] = rows[i].model_copy(update={"text": change(rows[i].text)})
        return rows

    return edit


def repeat_id(rows):
    rows[1] = rows[1].model_copy(update={"id": rows[0].id})
    return rows


def twins(rows):
    """One document once more, in other case and spacing."""
    long = next(row for row in rows if row.domain == "code" and len(row.text) < 1_200)
    rows.append(long.model_copy(update={"id": "twin", "text": long.text.replace("\n", "\n ")}))
    return rows


def cousins(rows):
    """Several documents once more with two words changed."""
    room = [row for row in rows if row.domain == "code" and len(row.text) < 1_490]
    long = sorted(room, key=lambda row: -len(row.text))[:9]
    return rows + [
        row.model_copy(update={"id": f"{row.id}-again", "text": f"once {row.text} more"})
        for row in long
    ]


def relabelled(rows):
    return [row.model_copy(update={"domain": "stem" if row.domain == "code" else row.domain})
            for row in rows]  # fmt: skip


def webbed(rows):
    """A domain that is no reasoning-related text, taken from the code."""
    return [row.model_copy(update={"domain": "web" if row.domain == "code" else row.domain})
            for row in rows]  # fmt: skip


PROSE = {"word_count", "mean_word_length", "symbol_word_ratio", "alphabetic_words", "stop_words",
         "duplicate_lines", "duplicate_line_characters", "punctuated_lines", "bullet_lines",
         "ellipsis_lines", "top_2grams", "top_3grams", "top_4grams", "duplicate_5grams",
         "duplicate_10grams"}  # fmt: skip
CASES = {
    "ids_unique": (repeat_id, set()),
    "text_not_blank": (text(1, lambda t: " \n" + " " * (len(t) - 2)), set()),
    "control_characters": (text(1, lambda t: t[:-1] + "\0"), set()),
    "replacement_characters": (text(2, lambda t: t[:-1] + "\ufffd"), set()),
    "secrets": (text(1, lambda t: f"{SECRET} {t[21:]}"), set()),
    "emails": (text(9, lambda t: f"ada@lovelace.org {t[17:]}"), set()),
    "public_ips": (text(9, lambda t: f"93.184.216.34 {t[14:]}"), set()),
    "duplicates": (twins, {"characters_planned"}),
    "near_duplicates": (cousins, {"mixture_kl", "characters_planned", "reasoning_related_share"}),
    "mixture_kl": (relabelled, PROSE),
    "reasoning_related_share": (webbed, {"mixture_kl"} | PROSE),
    "characters_planned": (lambda rows: rows[: len(rows) * 9 // 10], {"mixture_kl"}),
    "overlong_documents": (text(1, lambda t: t + " and more" * 200), {"characters_planned"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_of_the_corpus_fails_its_check_and_no_other(parts, suite, tmp_path, name):
    change, along = CASES[name]
    broken = rewrite(parts["documents"], tmp_path / "d", "documents.jsonl", Document, change,
                     "documents")  # fmt: skip
    found = failed(suite, measure(parts, broken))
    assert name in found
    assert found <= {name} | along


def test_a_benchmark_problem_in_the_corpus_is_seen(parts, suite, tmp_path):
    from longstride.data.held_out import benchmark_problems

    problem = benchmark_problems(parts.recipe)[0].prompt
    broken = rewrite(
        parts["documents"], tmp_path / "d", "documents.jsonl", Document,
        text(1, lambda t: f"{problem} {t[len(problem) + 1:]}"), "documents",
    )  # fmt: skip
    assert failed(suite, measure(parts, broken)) == {"benchmark_problems"}


COLUMNS = {spec.name: spec.column for spec in load_suite("E1").checks if spec.name in PROSE}


@pytest.mark.parametrize("name", COLUMNS)
def test_prose_outside_the_bounds_fails_its_check_and_no_other(parts, suite, name):
    measured = measure(parts, parts["documents"])
    low = name in ("word_count", "mean_word_length", "alphabetic_words", "stop_words",
                   "punctuated_lines")  # fmt: skip
    prose = [row for row in measured.rows if row[COLUMNS[name]] is not None]
    for row in prose[: len(prose) // 2]:
        row[COLUMNS[name]] = 0 if low else 0.95
    assert failed(suite, measured) == {name}


def test_code_and_generated_problems_are_exempt_from_rules_of_prose(parts):
    measured = measure(parts, parts["documents"])
    domains = {row.id: row.domain for row in _documents(parts)}
    for row in measured.rows:
        assert (row["stop_words"] is None) == (domains[row["id"]] != "book")


def _documents(parts):
    return read_jsonl(parts["documents"] / "documents.jsonl", Document)


def test_quarantined_rows_count_against_the_rows_read(parts, suite, tmp_path):
    broken = rewrite(parts["documents"], tmp_path / "d", "documents.jsonl", Document,
                     lambda rows: rows, "documents")  # fmt: skip
    (broken / "quarantine.jsonl").write_text('{"reason": "not UTF-8"}\n' * 10)
    publish(broken, "documents", "corpus", counts={"rows_read": 100})
    measured = measure(parts, broken)
    assert measured.summary["quarantine_share"] == pytest.approx(0.1)
    assert failed(suite, measured) == {"quarantine"}


def test_a_text_that_the_tokenizer_does_not_give_back_is_seen(parts, suite, monkeypatch):
    from longstride.tokens.tokenizer import Tokenizer

    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: "something else")
    assert failed(suite, measure(parts, parts["documents"])) == {"tokenizer_round_trip"}


def test_a_tokenizer_that_spells_every_byte_is_seen(parts, suite, monkeypatch):
    from longstride.tokens.tokenizer import Tokenizer

    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: [9] * len(text))
    assert "fertility" in failed(suite, measure(parts, parts["documents"]))
