"""Facts of a corpus as a whole, against closed forms."""

import math
from collections import Counter

import numpy as np
import pytest
from quality_parts import make_recipe

from longstride.quality.measure_documents import mixture_facts

MIXTURE = {"book": 0.4, "web": 0.2, "code": 0.25, "reasoning": 0.15}


def test_divergence_of_a_mixture_equals_the_closed_form():
    found = mixture_facts(Counter(book=50, web=10, code=25, reasoning=15), make_recipe())
    p, q = np.array([0.5, 0.1, 0.25, 0.15]), np.array([0.4, 0.2, 0.25, 0.15])
    assert found["mixture_kl"] == pytest.approx((p * np.log(p / q)).sum())


def test_a_mixture_on_target_has_no_divergence():
    found = mixture_facts(Counter({name: 100 * share for name, share in MIXTURE.items()}),
                          make_recipe())  # fmt: skip
    assert found["mixture_kl"] == pytest.approx(0.0, abs=1e-12)


def test_a_domain_without_a_share_is_infinitely_far():
    assert mixture_facts(Counter(stem=1), make_recipe())["mixture_kl"] == math.inf


def test_the_gap_of_reasoning_is_the_share_above_the_recipe():
    recipe = make_recipe()
    found = mixture_facts(Counter(book=50, code=20, web=30), recipe)
    assert found["reasoning_related_share"] == pytest.approx(0.7)
    assert found["reasoning_related_gap"] == pytest.approx(
        0.7 - recipe.data.reasoning_related_share
    )


def test_a_stage_may_have_a_mixture_of_its_own():
    found = mixture_facts(Counter(book=50, code=50), make_recipe(), {"book": 0.5, "code": 0.5})
    assert found["mixture_kl"] == pytest.approx(0.0, abs=1e-12)
