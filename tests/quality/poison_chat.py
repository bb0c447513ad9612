"""E3: conversations and their packed rows with one fault."""

from dataclasses import replace

import numpy as np
from poison_parts import Poison, quoted_words, wordy_family
from quality_parts import rewrite, write_packed

from longstride.store.artifacts import digest_of_artifact, open_artifact
from schemas.rows import ChatExample, Message


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


def chat(change, *also):
    """Conversations with a fault, and packed rows that name them as their source."""

    def reference(parts, out):
        return rewrite(parts["chat"], out, "examples.jsonl", ChatExample, change, "chat")

    def subject(parts, out):
        made = reference(parts, out.parent / "digest")
        digest = digest_of_artifact(open_artifact(made, "chat"))

        def name(tensors, records, manifest):
            manifest["parents"]["chat"] = digest

        return write_packed(out, parts["sft"], name)

    return Poison(subject, frozenset(also), reference)


def packed(change, *also):
    return Poison(lambda parts, out: write_packed(out, parts["sft"], change), frozenset(also))


def repeat_id(rows):
    """A conversation under another's id, which is then packed twice and its own never."""
    return [
        *rows,
        rows[0].model_copy(
            update={
                "messages": [
                    Message(role="user", content="A question of its own, asked once only?"),
                    rows[0].messages[-1],
                ]
            }
        ),
    ]


def empty_turn(rows):
    system = Message(role="system", content=" ")
    return [rows[0].model_copy(update={"messages": [system, *rows[0].messages]}), *rows[1:]]


def with_problem(rows_of):
    def subject(parts, out):
        return chat(asked(rows_of(parts))).subject(parts, out)

    def reference(parts, out):
        return chat(asked(rows_of(parts))).reference(parts, out)

    return Poison(subject, reference=reference)


def asked(questions):
    def change(rows):
        for number, question in enumerate(questions):
            rows[number] = say(rows[number], "user", question)
        return rows

    return change


def a_problem(parts):
    from longstride.data.held_out import benchmark_problems

    return [benchmark_problems(parts.recipe)[0].prompt]


def unreflecting(rows):
    """A tenth of the conversations reflect, as the recipe asks for, and are marked as such."""
    made, marks = [], 0
    for n, row in enumerate(rows):
        marks += row.reflection
        if not row.reflection or marks > len(rows) // 10:
            row = say(row, "assistant", f"<think>{'+'.join(str(n))}</think>7")
            row = row.model_copy(update={"reflection": False})
        made.append(row)
    return made


def little_reflection(recipe):
    recipe.sft.reflection_share = 0.1


def words_of_problem(parts):
    return [f"How long is this: {quoted_words(parts)}? {n}" for n in range(8)]


def fewer(rows):
    return rows[: len(rows) // 3]


def drop_rows(tensors, records, manifest):
    """One row of many is lost, and so are its conversations."""
    keep = len(records) * 9 // 10
    del records[keep:]
    return {name: array[:keep] for name, array in tensors.items()}


def narrow_recipe(recipe):
    recipe.sft.window = 256


def ask_for_more(recipe):
    recipe.sft.examples = 10_000


def ask_for_little_padding(recipe):
    recipe.quality.thresholds["E3/padding"] = 0.0


def train_padding(tensors, records, manifest):
    row = int(np.argmax((tensors["segments_NT"] < 0).any(axis=1)))
    tensors["loss_mask_NT"][row, -1] = 1
    records[row]["target_tokens"] += 1


def unclose(tensors, records, manifest):
    """The user's turn runs on into the answer's header."""
    assistant = int(np.argmax(tensors["tokens_NT"][0] == 4))
    tensors["tokens_NT"][0, assistant - 1] = 20


SENTENCE = "It is clear that the sum is nine here. "
PARAGRAPH = "It is clear now that the sum must be nine"
POISONS = {
    "ids_unique": chat(repeat_id),
    "roles_alternate": chat(reorder),
    "turns_not_blank": chat(empty_turn),
    "think_well_formed": chat(answering("no thinking at all 7")),
    "thinking_not_empty": chat(answering("<think> </think>7")),
    "reflection_marked": chat(marked),
    "reflection_share": chat(plain),
    "duplicates": chat(repeat_question),
    "benchmark_ngrams": replace(with_problem(words_of_problem), recipe=wordy_family()),
    "benchmark_problems": with_problem(a_problem),
    "repeated_sentences": chat(
        lambda rows: (
            [say(row, "assistant", f"<think>Wait, {SENTENCE * 4}</think>7") for row in rows[:5]]
            + rows[5:]
        )
    ),
    "special_token_text": chat(answering("<think>Wait, <|end|></think>7")),
    "foreign_identity": chat(answering("<think>Wait, as an AI language model</think>7")),
    "knowledge_cut_off": chat(answering("<think>Wait, my knowledge cutoff</think>7")),
    "packed_once": packed(drop_rows),
    "reasoning_share": chat(worldly),
    "examples_planned": Poison(recipe=ask_for_more),
    "window": Poison(recipe=narrow_recipe),
    "rows_well_formed": packed(wrong_positions),
    "records_agree": packed(wrong_record),
    "tokens_in_vocabulary": packed(unknown_token),
    "targets_on_padding": packed(train_padding),
    "prompt_untrained": packed(train_prompt),
    "answer_trained": packed(skip_answer),
    "stop_token_trained": packed(skip_stop),
    "documents_known": packed(rename),
    "packed_from_examples": packed(from_elsewhere),
    "padding": Poison(recipe=ask_for_little_padding),
    "repeated_paragraphs": chat(
        lambda rows: (
            [
                say(
                    row,
                    "assistant",
                    "<think>Wait\n\n"
                    + "\n\n".join([PARAGRAPH] * 2)
                    + "\n\n"
                    + "\n".join(f"Then we count on to {n} and see where we are." for n in range(9))
                    + "</think>7",
                )
                for row in rows[:5]
            ]
            + rows[5:]
        )
    ),
    "reflection_coverage": replace(chat(unreflecting), recipe=little_reflection),
    "turns_closed": packed(unclose),
}
