"""Cleaning rules one by one, and the account of every row and document."""

import json
import random
import re

import pytest
from data_parts import json_lines, make_recipe
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.data.corpus import CorpusSummary, build_corpus
from longstride.data.held_out import benchmark_problems
from longstride.data.measures.prose import NAMES
from longstride.data.measures.secrets import (
    email_count,
    public_ip_count,
    without_emails,
    without_public_ips,
)
from longstride.errors import DataError
from longstride.store.files import read_json, read_jsonl
from schemas.cleaning import CleaningConfig, GopherRepetition, Limit, ProseMeasure, nothing
from schemas.rows import Document

WORDS = re.findall(
    r"\w+",
    "the of and to that have with be in is was for on at by from they which would there their what "
    "about when water long little very after where much before right old same boy came show every "
    "good under name through form great think help low line turn cause mean differ move does tell "
    "sentence set three want air well also play small end put home read hand port large spell add "
    "even land here must big high such follow act why ask men change went light kind off need "
    "house picture try again animal point mother world near build self earth father head stand own "
    "page should country found answer school grow study still learn plant cover food sun four",
)


def prose(seed, sentences=24):
    """Lines of common English words in random order: no five of them come twice."""
    rng = random.Random(seed)
    lines = (" ".join(rng.choices(WORDS, k=rng.randint(9, 14))) for _ in range(sentences))
    return "\n".join(line.capitalize() + "." for line in lines)


def build(folder, rows, *, domain="web", cleaning=None, characters=10_000, **data):
    (folder / "in").mkdir(parents=True)
    lines = [json.dumps({"text": row}) if isinstance(row, str) else row.decode() for row in rows]
    (folder / "in" / "a.jsonl").write_text("\n".join(lines) + "\n")
    recipe = make_recipe(
        folder,
        data={
            "sources": [
                {"kind": "files", "name": "mine", "domain": domain, "uri": str(folder / "in")}
            ],
            "mixture": {domain: 1.0},
            "characters": characters,
            # Only some tests pay for making the benchmark's problems.
            "cleaning": {"contamination": {"domains": []}, **(cleaning or {})},
            **data,
        },
    )
    build_corpus(recipe, folder / "out")
    documents = list(read_jsonl(folder / "out" / "documents.jsonl", Document))
    return documents, read_json(folder / "out" / "summary.json", CorpusSummary)


CLEAN = [prose(seed) for seed in range(8)]


def test_clean_english_passes_every_default_rule(tmp_path):
    documents, summary = build(tmp_path, CLEAN)
    assert set(summary.dropped) <= {"not_sampled", "rest_of_cut"}
    assert summary.kept.characters == sum(len(d.text) for d in documents) >= 9_900


GERMAN = (
    "Der alte Fährmann zählte sieben graue Gänse am Ufer des Flusses und schrieb ins Buch, dass "
    "{n} Boote vor dem Morgen abgelegt hatten, ohne dass jemand im Dorf davon wusste."
)
DIRTY = {
    "language": "\n".join(GERMAN.format(n=n) for n in range(12)),
    "words": "The captain of the old ship said that we have to be there on time with all of it.",
    "mean_word_length": "The of and to be "
    + " ".join(f"incomprehensibilities{i}x" for i in range(90)),
    "symbol_word_ratio": prose(90) + " # # #" * 60,
    "bullet_line_share": "\n".join("- " + line for line in prose(91, 14).split("\n")),
    "ellipsis_line_share": prose(92, 14).replace(".\n", "...\n"),
    "alphabetic_word_share": prose(93, 5) + " 2024 71 1999 88" * 20,
    "duplicate_line_share": "\n".join([prose(94, 4)] * 3),
    "duplicate_5gram_share": " ".join(
        f"{prose(95 + i, 1)} we all go down to the old harbour to see what there is to be seen"
        for i in range(9)
    ),
    "punctuated_line_share": prose(120).replace(".", ""),
    "short_line_share": "\n".join(
        f"They {w} the {v} home." for w, v in zip(WORDS, WORDS[7:], strict=False)
    ),
}


@pytest.mark.parametrize("reason", DIRTY)
def test_a_document_that_breaks_one_rule_is_dropped_by_its_name(tmp_path, reason):
    # Some texts cannot break their rule without breaking another, which would be named first.
    other = {"mean_word_length": "language", "short_line_share": "gopher_repetition"}.get(reason)
    rules = {other: {"domains": []}} if other else {}
    documents, summary = build(tmp_path, [*CLEAN, DIRTY[reason]], cleaning=rules)
    assert summary.dropped.pop("not_sampled", 0) + summary.dropped.pop("rest_of_cut", 0) >= 0
    assert summary.dropped == {reason: 1}
    (sample,) = json_lines(tmp_path / "out" / "dropped.jsonl")
    assert (sample["id"], sample["reason"]) == ("mine/a.jsonl:9", reason)
    assert sample["value"] and sample["limit"] and DIRTY[reason].startswith(sample["excerpt"])
    assert "mine/a.jsonl:9" not in {d.id.split("#")[0] for d in documents}


@pytest.mark.parametrize("reason", ["language", "words", "alphabetic_word_share"])
def test_code_is_exempt_from_rules_of_prose(tmp_path, reason):
    _, summary = build(tmp_path, [*CLEAN, DIRTY[reason]], domain="code")
    assert reason not in summary.dropped


def test_every_rule_has_an_off_switch(tmp_path):
    rows = [*CLEAN, *DIRTY.values(), "ghp_" + "a1B2" * 9 + " " + prose(5), CLEAN[0] + " again"]
    _, summary = build(tmp_path, rows, cleaning=nothing().model_dump())
    assert set(summary.dropped) <= {"not_sampled", "rest_of_cut"} and summary.quarantined == 0


def test_addresses_are_replaced_and_their_sentences_stay(tmp_path):
    text = "Write to ada@lovelace.org or to 93.184.216.34, not to x@example.com.\n" + prose(30)
    documents, summary = build(tmp_path, [*CLEAN, text], characters=11_900)
    found = "\n".join(d.text for d in documents)
    assert "Write to email@example.com or to 192.0.2.1, not to x@example.com." in found
    assert summary.replaced == {"emails": 1, "ip_addresses": 1}


@given(st.text(st.sampled_from("ab@.1 90example.com")))
def test_after_replacing_no_address_is_left(text):
    mended, emails = without_emails(text)
    mended, ips = without_public_ips(mended)
    assert email_count(mended) == 0 and public_ip_count(mended) == 0
    assert (mended == text) == (emails == ips == 0)


def test_a_row_with_a_secret_is_quarantined_and_not_quoted(tmp_path):
    secret = "ghp_" + "a1B2" * 9
    _, summary = build(tmp_path, [*CLEAN, f"{prose(4)}\ntoken = {secret}\n"])
    (bad,) = json_lines(tmp_path / "out" / "quarantine.jsonl")
    assert bad["where"] == "a.jsonl:9" and "1 private keys or access tokens" in bad["reason"]
    assert summary.quarantined == 1 and summary.rows_read == {"mine": 9}
    for path in (tmp_path / "out").iterdir():
        assert secret not in path.read_text()


def test_near_duplicates_are_dropped_but_not_what_is_merely_alike(tmp_path):
    near = CLEAN[2].replace("the", "yonder", 1)
    _, summary = build(tmp_path, [*CLEAN, near, prose(77)])
    assert summary.dropped["near_duplicate"] == 1


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return benchmark_problems(make_recipe(tmp_path_factory.mktemp("p")))[0]


def test_a_benchmark_problem_is_found_whole_in_any_text(tmp_path, problem):
    row = f"{prose(8)}\n{problem.prompt.upper()}\n{prose(9, 3)}"
    _, summary = build(tmp_path, [*CLEAN, row], cleaning={"contamination": {}})
    assert summary.dropped["holds_problem"] == 1


def test_twelve_words_of_a_named_evaluation_are_enough_and_eleven_are_not(tmp_path):
    question = (
        "At the county fair seven jugglers threw nine torches each while two rested briefly nearby."
    )
    (tmp_path / "eval.jsonl").write_text(json.dumps({"question": question}) + "\n")
    held_out = [{"name": "fair", "uri": str(tmp_path / "eval.jsonl"), "text_field": "question"}]
    twelve, eleven = " ".join(question.split()[:12]), " ".join(question.split()[:11])
    rows = [*CLEAN, prose(8) + "\n" + twelve + " indeed.", prose(9) + "\n" + eleven + " indeed."]
    _, summary = build(tmp_path, rows, cleaning={"contamination": {"held_out": held_out}})
    assert summary.dropped["problem_ngram"] == 1
    assert [s["id"] for s in json_lines(tmp_path / "out" / "dropped.jsonl")] == ["mine/a.jsonl:9"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b'{"text": "one"}\n{"text": 3}\n', "1 unusable rows, first eval.jsonl:2"),
     (b"\n", "holds no problem")],
)  # fmt: skip
def test_an_evaluation_that_cannot_be_read_whole_is_refused(tmp_path, content, problem):
    (tmp_path / "eval.jsonl").write_bytes(content)
    held_out = [{"name": "fair", "uri": str(tmp_path / "eval.jsonl")}]
    with pytest.raises(DataError, match=problem):
        build(tmp_path, CLEAN, cleaning={"contamination": {"held_out": held_out}})


def test_a_source_whose_documents_are_all_dropped_says_by_which_rule(tmp_path):
    with pytest.raises(DataError, match=r"dropped \{'language': 1\}"):
        build(tmp_path, [DIRTY["language"]])


ROWS = st.lists(
    st.one_of(
        st.sampled_from(CLEAN),
        st.sampled_from(list(DIRTY.values())),
        st.sampled_from(["short", CLEAN[0] + " once more", "hf_" + "a" * 34 + " " + CLEAN[1]]),
        st.sampled_from([b"{", b'{"text": null}', b"[1]", b'{"body": "x"}']),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(rows=ROWS, size=st.sampled_from([400, 3_000, 50_000]))
def test_every_row_and_every_document_is_accounted_for(tmp_path_factory, rows, size):
    folder = tmp_path_factory.mktemp("account")
    documents, summary = build(folder, [*CLEAN, *rows], document_characters=size)
    quarantine = json_lines(folder / "out" / "quarantine.jsonl")
    assert summary.rows_read == {"mine": 8 + len(rows)}
    broken = sum(isinstance(row, bytes) or row.startswith("hf_") for row in rows)
    assert summary.quarantined == len(quarantine) == broken
    assert summary.pieces == len(documents) + sum(summary.dropped.values())
    ruled = {r: n for r, n in summary.dropped.items() if r not in ("not_sampled", "rest_of_cut")}
    assert summary.dropped_by_source.get("mine", {}) == ruled
    assert not list((folder / "out").glob(".spool*"))


def test_an_override_of_one_limit_leaves_the_others_at_their_defaults():
    rules = GopherRepetition.model_validate({"limits": {"duplicate_5gram_share": {"maximum": 0.4}}})
    assert rules.limits["duplicate_5gram_share"] == Limit(maximum=0.4)
    assert rules.limits["duplicate_line_share"] == Limit(maximum=0.3)
    config = CleaningConfig(gopher_repetition=rules)
    assert CleaningConfig.model_validate_json(config.model_dump_json()) == config


def test_limits_that_nothing_meets_are_refused():
    with pytest.raises(ValueError, match="nothing could stay"):
        Limit(minimum=2, maximum=1)


def test_rules_can_name_every_measure_of_prose():
    assert set(ProseMeasure.__args__) == set(NAMES)
