import numpy as np
import pytest
from data_parts import chain_sum, make_recipe
from safetensors.numpy import load_file

from longstride.data.sft import build_chat_examples, pack_chat
from longstride.data.tasks import split_of
from longstride.errors import DataError
from longstride.store.artifacts import open_artifact
from longstride.store.files import read_jsonl
from longstride.tokens.chat import parse_answer, render_example
from schemas.rows import ChatExample, PackedRow


@pytest.fixture
def examples_dir(recipe, tmp_path):
    build_chat_examples(recipe, tmp_path / "chat")
    return tmp_path / "chat"


def examples_of(folder):
    return list(read_jsonl(folder / "examples.jsonl", ChatExample))


def test_every_example_is_a_well_formed_conversation_from_the_sft_split(examples_dir):
    examples = examples_of(examples_dir)
    assert len(examples) == len({e.messages[0].content for e in examples}) == 200
    assert all([m.role for m in e.messages] == ["user", "assistant"] for e in examples)
    assert all(parse_answer(e.messages[1].content).well_formed for e in examples)
    assert {split_of(e.messages[0].content) for e in examples} == {"sft"}


def test_the_asked_share_reflects_and_only_those_examples_hold_a_correction(examples_dir):
    examples = examples_of(examples_dir)
    marked = [any(m in e.messages[1].content for m in ("Wait", "Recheck", "However"))
              for e in examples]  # fmt: skip
    assert marked == [example.reflection for example in examples]
    assert 0.2 < np.mean(marked) < 0.4


def test_examples_are_a_whole_artifact_and_repeatable(recipe, examples_dir, tmp_path):
    manifest = open_artifact(examples_dir, "chat")
    assert manifest.counts["examples"] == manifest.counts["asked"] == 200
    assert build_chat_examples(recipe, tmp_path / "again") == manifest


def test_fewer_problems_than_examples_is_counted_and_far_fewer_is_refused(prose_folder, tmp_path):
    some = make_recipe(prose_folder, tasks=[chain_sum(2)], sft={"examples": 150, "window": 128})
    counts = build_chat_examples(some, tmp_path / "some").counts
    assert 75 < counts["examples"] < counts["asked"] == 150
    none = make_recipe(prose_folder, tasks=[chain_sum(2)], sft={"examples": 900, "window": 128})
    with pytest.raises(DataError, match=r"sft\.examples=900, but .* only \d+ distinct problems"):
        build_chat_examples(none, tmp_path / "none")


def test_packing_splits_no_conversation_and_trains_only_the_answers(
    examples_dir, tokenizer, tmp_path
):
    pack_chat(examples_dir, tokenizer, 200, tmp_path / "packed", seed=1)
    tensors = load_file(tmp_path / "packed" / "packed.safetensors")
    rows = list(read_jsonl(tmp_path / "packed" / "rows.jsonl", PackedRow))
    expected = {e.id: render_example(tokenizer, e.messages) for e in examples_of(examples_dir)}
    seen = []
    for number, row in enumerate(rows):
        for index, name in enumerate(row.documents):
            here = tensors["segments_NT"][number] == index
            tokens, mask = expected[name]
            assert tensors["tokens_NT"][number][here].tolist() == tokens
            assert tensors["loss_mask_NT"][number][here].tolist() == mask
            seen.append(name)
    assert sorted(seen) == sorted(expected)


def test_padding_is_on_the_right_masked_and_counted(examples_dir, tokenizer, tmp_path):
    pack_chat(examples_dir, tokenizer, 200, tmp_path / "packed", seed=1)
    tensors = load_file(tmp_path / "packed" / "packed.safetensors")
    rows = list(read_jsonl(tmp_path / "packed" / "rows.jsonl", PackedRow))
    padding_NT = tensors["segments_NT"] == -1
    assert padding_NT.sum(axis=1).tolist() == [row.padding_tokens for row in rows]
    assert (np.diff(padding_NT.astype(int), axis=1) >= 0).all()
    assert (tensors["tokens_NT"][padding_NT] == tokenizer.pad_id).all()
    assert not tensors["loss_mask_NT"][padding_NT].any()
    assert not tensors["positions_NT"][padding_NT].any()


def test_conversations_that_do_not_fit_are_dropped_and_counted(examples_dir, tokenizer, tmp_path):
    lengths = [len(render_example(tokenizer, e.messages)[0]) for e in examples_of(examples_dir)]
    window = int(np.median(lengths))
    counts = pack_chat(examples_dir, tokenizer, window, tmp_path / "packed", seed=1).counts
    assert counts["dropped_too_long"] == sum(length > window for length in lengths) > 0
    assert counts["examples"] == sum(length <= window for length in lengths)


def test_a_window_that_no_conversation_fits_is_refused(examples_dir, tokenizer, tmp_path):
    with pytest.raises(DataError, match=r"none of the 200 conversations .* sft\.window=16 tokens"):
        pack_chat(examples_dir, tokenizer, 16, tmp_path / "packed", seed=1)
