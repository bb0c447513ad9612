"""Stop strings, on a toy alphabet where token i is a letter or a few."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_models import policy

from longstride.rollout.native import NativeGenerator
from longstride.rollout.protocol import SamplingSettings
from longstride.rollout.stop_text import StopText

PIECES = ["a", "b", "c", "ab", "bc", "é", "abc"]


def decode(tokens):
    return "".join(PIECES[token % len(PIECES)] for token in tokens)


@given(
    st.lists(st.integers(0, len(PIECES) - 1), max_size=20),
    st.lists(st.text("abcé", min_size=1, max_size=4), min_size=1, max_size=2),
)
def test_a_sample_is_cut_at_the_first_token_that_completes_a_string(tokens, strings):
    ends = [
        end
        for end in range(1, len(tokens) + 1)
        if any(string in decode(tokens[:end]) for string in strings)
    ]
    assert StopText(tuple(strings), decode).cut(tokens) == (ends[0] if ends else None)


def test_an_occurrence_that_begins_in_the_known_part_is_found():
    assert StopText(("abc",), decode).cut([2, 0, 1, 2, 0], known=3) == 4


@pytest.mark.parametrize("strings", [(), ("",), ("a", "")])
def test_strings_that_mean_nothing_are_refused(strings):
    with pytest.raises(ValueError, match="at least one, none empty"):
        StopText(strings, decode)


def test_the_generator_ends_samples_at_the_string_and_keeps_what_came_before():
    prompts, text = [[1, 2, 3], [4, 5]], StopText(("cab", "éé"), decode)
    generator = NativeGenerator(policy(), max_batch=5)
    free = generator.generate(prompts, 12, SamplingSettings(max_new_tokens=40), seed=3)
    settings = SamplingSettings(max_new_tokens=40, stop_text=text)
    stopped = generator.generate(prompts, 12, settings, seed=3)
    cuts = 0
    for whole, cut in zip(chain(*free), chain(*stopped), strict=True):
        kept = text.cut(whole.tokens)
        cuts += kept is not None
        assert cut.tokens == whole.tokens[:kept]
        torch.testing.assert_close(
            torch.tensor(cut.logprobs), torch.tensor(whole.logprobs[:kept]), atol=1e-4, rtol=0
        )
        assert cut.finish_reason == ("length" if kept is None else "stop")
    assert cuts > 0
