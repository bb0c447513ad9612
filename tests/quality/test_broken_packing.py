"""E2 and E3: faults of packed rows and of conversations, each seen by exactly its check."""

import numpy as np
import pytest
from quality_parts import judge, rewrite, write_packed

from longstride.errors import DataError
from longstride.quality import measure_chat, measure_packed
from longstride.quality.gate import _open
from longstride.quality.packed_rows import read_packed
from longstride.quality.subject import Subject
from longstride.quality.suites import load_suite, resolve
from schemas.rows import ChatExample, Message


def outcome(edge, measured, recipe):
    return {n for n, passed in judge(resolve(load_suite(edge), recipe), measured).items()
            if not passed}  # fmt: skip


def measure_rows(parts, subject, stage="extend-1", recipe=None):
    reference = _open(parts["tokenizer"], "tokenizer")
    opened = _open(subject, "packed")
    return measure_packed.measure(Subject(stage, recipe or parts.recipe, opened, reference))


def pad_end(tensors, records, manifest):
    tensors["segments_NT"][0, -1] = -1
    tensors["loss_mask_NT"][0, -1] = 0
    records[0]["padding_tokens"] = 1


def swap_segments(tensors, records, manifest):
    tensors["segments_NT"][0] += 1


def shift_positions(tensors, records, manifest):
    tensors["positions_NT"][0] += 1


def train_first(tensors, records, manifest):
    tensors["loss_mask_NT"][0, 0] = 1


def weigh(tensors, records, manifest):
    tensors["loss_mask_NT"][0, 5] = 2


def foreign_token(tensors, records, manifest):
    tensors["tokens_NT"][0, 3] = 4_000


def repeat_rows(tensors, records, manifest):
    for name in ("tokens_NT", "segments_NT", "positions_NT", "loss_mask_NT"):
        tensors[name][1:4] = tensors[name][0]
    for number in range(1, 4):
        records[number] = records[0] | {"id": records[number]["id"]}


def untrained(tensors, records, manifest):
    tensors["loss_mask_NT"][0] = 0
    records[0]["target_tokens"] = 0


def other_tokenizer(tensors, records, manifest):
    manifest["parents"]["tokenizer"] = "sha256:other"


def endless(tensors, records, manifest):
    tensors["tokens_NT"][tensors["tokens_NT"] == 1] = 20


def narrow(tensors, records, manifest):
    for record in records:
        record["domain_tokens"] = {"code": sum(record["domain_tokens"].values())}


def lie(tensors, records, manifest):
    records[0]["longest_document_tokens"] = 1


def few(tensors, records, manifest):
    del records[3:]
    return {name: array[:3] for name, array in tensors.items()}


def chop(tensors, records, manifest):
    """Every token of a long segment becomes a document of its own."""
    shape = tensors["segments_NT"].shape
    tensors["segments_NT"][:] = np.arange(shape[1]) // 4
    tensors["positions_NT"][:] = np.arange(shape[1]) % 4
    tensors["loss_mask_NT"][:] = np.arange(shape[1]) % 4 != 0
    for record in records:
        record["documents"] = ["d"] * (shape[1] // 4)
        record["longest_document_tokens"] = 4
        record["target_tokens"] = shape[1] * 3 // 4


E2 = {
    "no_padding": pad_end,
    "segments_ordered": swap_segments,
    "positions_restart": shift_positions,
    "targets_without_context": train_first,
    "mask_binary": weigh,
    "tokens_in_vocabulary": foreign_token,
    "duplicate_rows": repeat_rows,
    "rows_have_targets": untrained,
    "tokenizer_matches": other_tokenizer,
    "documents_end": endless,
    "records_agree": lie,
    "tokens_planned": few,
    "long_share": chop,
}
ALONG = {"segments_ordered": {"records_agree"}, "targets_without_context": {"records_agree"},
         "mask_binary": {"records_agree"}, "tokens_planned": {"documents_end"},
         "no_padding": {"records_agree"}}  # fmt: skip


@pytest.mark.parametrize("name", E2)
def test_a_fault_of_packed_rows_fails_its_check_and_no_other(parts, tmp_path, name):
    broken = write_packed(tmp_path / "p", parts["extend-1"], E2[name])
    found = outcome("E2", measure_rows(parts, broken), parts.recipe)
    assert name in found
    assert found <= {name} | ALONG.get(name, set())


def test_padding_that_is_trained_is_seen(parts, tmp_path):
    def change(tensors, records, manifest):
        pad_end(tensors, records, manifest)
        tensors["loss_mask_NT"][0, -1] = 1

    broken = write_packed(tmp_path / "p", parts["extend-1"], change)
    found = outcome("E2", measure_rows(parts, broken), parts.recipe)
    assert "targets_on_padding" in found


def test_a_mixture_far_from_the_recipes_is_seen(parts, tmp_path):
    broken = write_packed(tmp_path / "p", parts["extend-1"], narrow)
    measured = measure_rows(parts, broken)
    assert measured.summary["mixture_kl"] == pytest.approx(np.log(1 / 0.25))


def test_a_stage_with_a_mixture_of_its_own_is_judged_by_that(parts, tmp_path):
    broken = write_packed(tmp_path / "p", parts["extend-1"], narrow)
    recipe = parts.recipe.model_copy(deep=True)
    recipe.extension[0].mixture = {"code": 0.5, "book": 0.5}
    measured = measure_rows(parts, broken, recipe=recipe)
    assert measured.summary["mixture_kl"] == pytest.approx(np.log(1 / 0.5))


def test_rows_of_another_window_are_seen(parts):
    found = outcome("E2", measure_rows(parts, parts["pretrain"], "extend-1"), parts.recipe)
    assert "window" in found


def test_a_missing_tensor_is_refused_by_name(parts, tmp_path):
    def change(tensors, records, manifest):
        return {name: array for name, array in tensors.items() if name != "segments_NT"}

    with pytest.raises(DataError, match=r"packed\.safetensors lacks tensor 'segments_NT'"):
        read_packed(write_packed(tmp_path / "p", parts["extend-1"], change))


def test_rows_and_records_of_different_number_are_refused(parts, tmp_path):
    def change(tensors, records, manifest):
        records.pop()

    with pytest.raises(DataError, match=r"rows\.jsonl has \d+ rows"):
        read_packed(write_packed(tmp_path / "p", parts["extend-1"], change))


# --- E3 -------------------------------------------------------------------------------------------


def measure_sft(parts, packed, chat):
    subject, reference = _open(packed, "packed"), _open(chat, "chat")
    return measure_chat.measure(Subject("sft", parts.recipe, subject, reference))


def say(example, role, content):
    messages = [m if m.role != role else Message(role=role, content=content)
                for m in example.messages]  # fmt: skip
    return example.model_copy(update={"messages": messages})


def answering(content):
    return lambda rows: [say(rows[0], "assistant", content), *rows[1:]]


def reorder(rows):
    turns = list(reversed(rows[0].messages))
    return [rows[0].model_copy(update={"messages": turns}), *rows[1:]]


def marked(rows):
    plain = next(i for i, row in enumerate(rows) if not row.reflection)
    rows[plain] = rows[plain].model_copy(update={"reflection": True})
    return rows


def repeat_question(rows):
    return [say(rows[0], "user", rows[1].messages[0].content), *rows[1:]]


def worldly(rows):
    return [row.model_copy(update={"domain": "web"}) for row in rows]


def plain(rows):
    return [row.model_copy(update={"reflection": False}) for row in rows]


SENTENCE = "It is clear that the sum is nine here. "
E3 = {
    "roles_alternate": reorder,
    "think_well_formed": answering("no thinking at all 7"),
    "thinking_not_empty": answering("<think> </think>7"),
    "reflection_marked": marked,
    "reflection_share": plain,
    "duplicates": repeat_question,
    "repeated_sentences": lambda rows: (
        [say(row, "assistant", f"<think>Wait, {SENTENCE * 4}</think>7") for row in rows[:5]]
        + rows[5:]
    ),
    "special_token_text": answering("<think>Wait, <|end|></think>7"),
    "foreign_identity": answering("<think>Wait, as an AI language model</think>7"),
    "reasoning_share": worldly,
}


@pytest.mark.parametrize("name", E3)
def test_a_fault_of_conversations_fails_its_check_and_no_other(parts, tmp_path, name):
    chat = rewrite(parts["chat"], tmp_path / "c", "examples.jsonl", ChatExample, E3[name], "chat")
    found = outcome("E3", measure_sft(parts, parts["sft"], chat), parts.recipe)
    assert name in found
    # The digest of the conversations has changed, which the lineage check must see as well.
    assert found == {name, "packed_from_examples"}


def test_a_benchmark_problem_among_the_conversations_is_seen(parts, tmp_path):
    from longstride.data.held_out import benchmark_problems

    problem = benchmark_problems(parts.recipe)[0].prompt
    chat = rewrite(
        parts["chat"], tmp_path / "c", "examples.jsonl", ChatExample,
        lambda rows: [say(rows[0], "user", problem), *rows[1:]], "chat",
    )  # fmt: skip
    found = outcome("E3", measure_sft(parts, parts["sft"], chat), parts.recipe)
    assert found == {"benchmark_problems", "packed_from_examples"}


def answer_positions(tensors):
    assistant, end = 4, 5
    start = int(np.argmax(tensors["tokens_NT"][0] == assistant))
    stop = start + int(np.argmax(tensors["tokens_NT"][0, start:] == end))
    return start, stop


def train_prompt(tensors, records, manifest):
    tensors["loss_mask_NT"][0, 1] = 1
    records[0]["target_tokens"] += 1


def skip_answer(tensors, records, manifest):
    start, _ = answer_positions(tensors)
    tensors["loss_mask_NT"][0, start + 1] = 0
    records[0]["target_tokens"] -= 1


def skip_stop(tensors, records, manifest):
    _, stop = answer_positions(tensors)
    tensors["loss_mask_NT"][0, stop] = 0
    records[0]["target_tokens"] -= 1


def rename(tensors, records, manifest):
    records[0]["documents"][0] = "stranger"


def wrong_positions(tensors, records, manifest):
    tensors["positions_NT"][0, 1] = 9


def wrong_record(tensors, records, manifest):
    records[0]["target_tokens"] += 1


def unknown_token(tensors, records, manifest):
    tensors["tokens_NT"][0, 1] = 400


def from_elsewhere(tensors, records, manifest):
    manifest["parents"]["chat"] = "sha256:elsewhere"


MASKS = {
    "prompt_untrained": (train_prompt, set()),
    "answer_trained": (skip_answer, set()),
    "stop_token_trained": (skip_stop, {"answer_trained"}),
    "documents_known": (rename, set()),
    "rows_well_formed": (wrong_positions, set()),
    "records_agree": (wrong_record, set()),
    "tokens_in_vocabulary": (unknown_token, set()),
    "packed_from_examples": (from_elsewhere, set()),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_fault_of_packed_conversations_fails_its_check_and_no_other(parts, tmp_path, name):
    change, along = MASKS[name]
    packed = write_packed(tmp_path / "p", parts["sft"], change)
    found = outcome("E3", measure_sft(parts, packed, parts["chat"]), parts.recipe)
    assert name in found
    assert found <= {name} | along


def test_conversations_that_were_dropped_are_seen(parts, tmp_path):
    def drop(tensors, records, manifest):
        half = len(records) // 2
        del records[half:]
        return {name: array[:half] for name, array in tensors.items()}

    packed = write_packed(tmp_path / "p", parts["sft"], drop)
    assert "packed_once" in outcome("E3", measure_sft(parts, packed, parts["chat"]), parts.recipe)
