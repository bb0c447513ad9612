"""A run that starts from somebody else's Hugging Face folder: real transformers files."""

from pathlib import Path

import pytest
import torch

from longstride.data.tokenizer_training import train_on_corpus
from longstride.errors import DataError, RecipeError
from longstride.model.architectures import config_from
from longstride.recipe.loading import load_recipe
from longstride.recipe.starting import folder_digest
from longstride.store.artifacts import publish
from longstride.store.files import write_jsonl
from longstride.tokens.tokenizer import SPECIALS, Tokenizer
from longstride.training.checkpoints import open_checkpoint
from longstride.training.language import initialise
from schemas.rows import Document
from schemas.stages import StartingPoint

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"
SETTINGS = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 128, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A llama and its byte-level tokenizer, written by transformers and tokenizers themselves."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    path = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SETTINGS)).save_pretrained(path)
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<|begin|>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["the cat sat on the mat and thought <think> about it"], trainer)
    backend.add_tokens(["<think>"])
    backend.save(str(path / "tokenizer.json"))
    return path


def recipe_from(folder: Path, digest: str | None = None, **model: object):
    recipe = load_recipe(RECIPES / "tiny.yaml")
    config = config_from(SETTINGS).model_copy(update={"vocab_size": 308} | model)
    start = StartingPoint(path=str(folder), digest=digest or folder_digest(folder))
    return recipe.model_copy(update={"model": config, "start_from": start})


def corpus(path: Path) -> Path:
    path.mkdir()
    document = Document(id="d", text="a cat", source="s", domain="book")
    write_jsonl(path / "documents.jsonl", [document])
    publish(path, "documents", "corpus")
    return path


def test_the_weights_arrive_and_new_rows_are_the_average(tmp_path, folder):
    from transformers import LlamaForCausalLM

    initialise(recipe_from(folder), tmp_path)
    opened = open_checkpoint(tmp_path)
    theirs = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.randint(0, 300, (2, 12), generator=torch.Generator().manual_seed(1))
    got = opened.model.logits(opened.model(tokens).hidden_BTD)
    torch.testing.assert_close(got[..., :300], theirs(tokens).logits, atol=1e-4, rtol=0)
    rows = opened.model.embed.weight
    torch.testing.assert_close(rows[300:], rows[:300].mean(0).expand(8, -1))
    assert opened.manifest.parents == {"start_from": folder_digest(folder)}


def test_the_tokenizer_keeps_its_ids_and_gains_the_special_tokens(tmp_path, folder):
    from tokenizers import Tokenizer as Backend

    theirs = Backend.from_file(str(folder / "tokenizer.json"))
    ours = train_on_corpus(recipe_from(folder), corpus(tmp_path / "corpus"), tmp_path / "out")
    text = "the cat <think> 12"
    assert ours.encode("the cat 12") == theirs.encode("the cat 12").ids
    assert ours.decode(ours.encode(text)) == text
    ids = [ours.special(name) for name in SPECIALS]
    assert len(set(ids)) == len(SPECIALS)
    assert not set(ids) & set(ours.encode("".join(SPECIALS) + text))
    assert Tokenizer.load(tmp_path / "out").digest == ours.digest


def test_another_architecture_is_refused_with_what_to_write(tmp_path, folder):
    with pytest.raises(RecipeError, match=r"set under `model:` num_heads: 2, head_dim: 8"):
        initialise(recipe_from(folder, num_heads=4, head_dim=4), tmp_path)


def test_other_content_than_the_recipe_pins_is_refused_with_its_digest(tmp_path, folder):
    with pytest.raises(RecipeError, match=folder_digest(folder)):
        initialise(recipe_from(folder, digest="sha256:?"), tmp_path)


def test_a_vocabulary_without_room_for_the_special_tokens_is_refused(tmp_path, folder):
    recipe = recipe_from(folder, vocab_size=290)
    with pytest.raises(RecipeError, match=r"vocab_size=290 is less than the 300 rows"):
        initialise(recipe, tmp_path / "weights")
    with pytest.raises(RecipeError, match=r"vocab_size=290 is less than the 2\d\d entries"):
        train_on_corpus(recipe, corpus(tmp_path / "corpus"), tmp_path / "out")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"has no tokenizer\.json"):
        initialise(recipe_from(tmp_path), tmp_path / "out")


def test_a_tokenizer_that_loses_text_is_refused(tmp_path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    backend = Backend(models.WordLevel({"cat": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="only byte-level tokenizers"):
        Tokenizer.adopt(tmp_path, tmp_path / "out")
