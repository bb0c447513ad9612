"""E2: packed rows are read in blocks, and refused by name where they cannot be."""

import numpy as np
import pytest
from poison_packed import narrow
from quality_parts import measure, measured_rows, write_packed

from longstride.errors import DataError
from longstride.quality import packed_rows
from longstride.quality.packed_rows import read_blocks


def test_the_size_of_a_block_changes_nothing(parts, tmp_path, monkeypatch):
    whole = measure("E2", "extend-1", parts.recipe, parts["extend-1"], parts["tokenizer"])
    monkeypatch.setattr(packed_rows, "_BLOCK_TOKENS", 7 * 64)
    small = measure("E2", "extend-1", parts.recipe, parts["extend-1"], parts["tokenizer"])
    assert small.summary == whole.summary
    assert measured_rows(small) == measured_rows(whole)


def test_a_stage_with_a_mixture_of_its_own_is_judged_by_that(parts, tmp_path):
    broken = write_packed(tmp_path / "p", parts["extend-1"], narrow)
    recipe = parts.recipe.model_copy(deep=True)
    recipe.extension[0].mixture = {"reasoning": 0.5, "book": 0.5}
    found = measure("E2", "extend-1", recipe, broken, parts["tokenizer"])
    assert found.summary["mixture_kl"] == pytest.approx(np.log(1 / 0.5))


def test_a_missing_tensor_is_refused_by_name(parts, tmp_path):
    def change(tensors, records, manifest):
        return {name: array for name, array in tensors.items() if name != "segments_NT"}

    with pytest.raises(DataError, match=r"packed\.safetensors lacks tensor 'segments_NT'"):
        list(read_blocks(write_packed(tmp_path / "p", parts["extend-1"], change)))


@pytest.mark.parametrize("change", ["fewer", "more"])
def test_rows_and_records_of_different_number_are_refused(parts, tmp_path, change):
    def edit(tensors, records, manifest):
        records.pop() if change == "fewer" else records.append(records[0])

    with pytest.raises(DataError, match=r"rows\.jsonl has \d+ rows"):
        list(read_blocks(write_packed(tmp_path / "p", parts["extend-1"], edit)))
