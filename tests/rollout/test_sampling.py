import numpy as np
import pytest
import torch
from sampling_models import policy

from longstride.rollout.native import NativeGenerator
from longstride.rollout.protocol import SamplingSettings
from longstride.rollout.sampling import UNIFORM_BLOCK, draw, uniform_block


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom; rare outcomes are pooled."""
    expected = probabilities * counts.sum()
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    statistic = float((((counts - expected) ** 2)[keep] / expected[keep]).sum())
    return statistic, int(keep.sum()) - 1


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.0, 0.8)])
def test_sampled_frequencies_match_the_distribution(temperature: float, top_p: float) -> None:
    from scipy.stats import chi2

    model, prompt, n = policy(), [3, 1], 4000
    rules = SamplingSettings(1, temperature=temperature, top_p=top_p)
    group = NativeGenerator(model, max_batch=1000).generate([prompt], n, rules, seed=11)[0]
    counts = np.bincount([sample.tokens[0] for sample in group], minlength=24)
    with torch.no_grad():
        logits = model.logits(model(torch.tensor([prompt])).hidden_BTD)[0, -1].double()
    probs = (logits / temperature).softmax(-1).numpy()
    ranked = np.argsort(-probs)
    kept = ranked[: int(np.searchsorted(probs[ranked].cumsum(), top_p)) + 1]
    nucleus = np.zeros_like(probs)
    nucleus[kept] = probs[kept] / probs[kept].sum()
    statistic, freedom = chi_square(counts, nucleus)
    assert statistic < chi2.ppf(0.999, freedom)
    assert counts[nucleus == 0].sum() == 0


def test_inverse_transform_picks_the_interval_that_holds_the_number() -> None:
    logits = torch.tensor([[0.2, 0.0, 0.5, 0.3]]).log().expand(6, 4)
    uniform = torch.tensor([0.0, 0.19, 0.21, 0.69, 0.71, 1.0 - 2**-53], dtype=torch.float64)
    assert draw(logits, uniform, 1.0, 1.0).token_R.tolist() == [0, 0, 2, 2, 3, 3]


def test_tokens_of_probability_zero_are_never_drawn() -> None:
    logits = torch.tensor([[-1e9, 0.0, -1e9, -1e9]]).expand(2, 4)
    uniform = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
    for top_p in (1.0, 0.5):
        assert draw(logits, uniform, 1.0, top_p).token_R.tolist() == [1, 1]


def test_a_single_non_finite_row_is_marked_alone() -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = float("nan")
    finite = draw(logits, torch.zeros(3, dtype=torch.float64), 1.0, 1.0).finite_R
    assert finite.tolist() == [True, False, True]


def test_uniform_numbers_are_a_function_of_their_indices() -> None:
    whole = np.concatenate([uniform_block(5, 2, 3, block) for block in range(3)])
    stream = np.random.Generator(np.random.Philox(key=np.array([5, 2 << 32 | 3], np.uint64)))
    assert np.array_equal(whole, stream.random(3 * UNIFORM_BLOCK))
    others = [(6, 2, 3), (5, 3, 3), (5, 2, 4)]
    assert all(not np.array_equal(uniform_block(*o, 0), whole[:UNIFORM_BLOCK]) for o in others)
    assert np.array_equal(uniform_block(-1, 0, 0, 0), uniform_block(2**64 - 1, 0, 0, 0))
