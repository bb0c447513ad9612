import subprocess
import sys

import pytest
from pydantic import ValidationError

import schemas.algorithms as algorithms
from schemas.artifacts import ArtifactManifest
from schemas.base import Contract, digest_of
from schemas.ladder import LadderConfig
from schemas.model import ModelConfig, seven_to_one
from schemas.recipe import Recipe
from schemas.rows import Rollout
from schemas.verdict import Check, Verdict


def contracts(model=Contract):
    for child in model.__subclasses__():
        yield child
        yield from contracts(child)


def test_the_contracts_import_without_anything_but_pydantic():
    code = (
        "import sys, schemas.recipe, schemas.run, schemas.artifacts\n"
        "heavy = {'torch', 'kfp', 'great_expectations', 'longstride', 'yaml', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("model", sorted(set(contracts()), key=lambda m: m.__name__))
def test_every_field_of_every_contract_is_explained_in_a_sentence(model):
    if not model.__module__.startswith("schemas."):
        pytest.skip("a contract of the library, not of schemas/")
    unexplained = [n for n, f in model.model_fields.items() if not (f.description or "").strip()]
    assert unexplained == []
    assert all(f.description.endswith(".") for f in model.model_fields.values())


def test_a_cap_below_one_is_refused_because_it_scales_on_policy_tokens():
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        algorithms.CispoConfig(is_weight_cap=0.2)


def test_the_defaults_of_cispo_are_the_papers():
    config = algorithms.CispoConfig()
    assert (config.is_weight_cap, config.is_weight_floor) == (5.0, None)
    assert (config.mask_low, config.mask_high, config.aggregation) == (None, None, "token")


def test_the_ladder_at_scale_1000_has_the_papers_windows():
    assert LadderConfig(scale=1000).windows == [40000, 48000, 56000, 64000, 72000, 80000]


def with_stage_mixture(mixture):
    sums = {"parameters": {"min_terms": 3, "max_terms": 3}}
    return Recipe.model_validate(
        {
            "name": "small",
            "data": {
                "sources": [
                    {"kind": "standard_library", "name": "code", "domain": "code", "part": "code"}
                ],
                "mixture": {"code": 1.0, "web": 0.0},
            },
            "tasks": [{"name": "chain_sum", "levels": [sums]}],
            "extension": [
                {"window": 128, "rope_base": 2e4, "tokens": 1, "learning_rate": 1e-3,
                 "mixture": mixture},
            ],
        }
    )  # fmt: skip


def test_a_stage_may_have_a_mixture_of_its_own():
    assert with_stage_mixture({"code": 1.0}).extension[0].mixture == {"code": 1.0}


@pytest.mark.parametrize(
    ("mixture", "why"),
    [
        ({"code": 0.5, "web": 0.2}, "sum to 1"),
        ({"code": 0.5, "web": 0.5}, r"mixture with \['web'\], but the corpus"),
    ],
)
def test_a_stage_mixture_that_cannot_be_met_is_refused(mixture, why):
    with pytest.raises(ValidationError, match=why):
        with_stage_mixture(mixture)


def test_m1_has_a_softmax_layer_in_every_eight():
    kinds = seven_to_one(80)
    assert [i for i, kind in enumerate(kinds) if kind == "softmax"] == list(range(7, 80, 8))


def test_values_are_checked_on_assignment_too():
    config = ModelConfig()
    with pytest.raises(ValidationError):
        config.num_heads = 0


def test_a_rollout_whose_tokens_and_log_probabilities_differ_in_number_is_refused():
    with pytest.raises(ValidationError, match="2 tokens but 1 log-probabilities"):
        Rollout(
            prompt_id="p", group=0, sample=0, batch=0, prompt_tokens=[1], tokens=[1, 2],
            logprobs=[-1.0], text="", finish_reason="stop", reward=0.0, window=4,
        )  # fmt: skip


def test_a_verdict_names_only_failed_checks_that_block():
    def check(name, severity, passed):
        return Check(name=name, description="d.", severity=severity, passed=passed, observed=1,
                     threshold="<= 0")  # fmt: skip

    verdict = Verdict(
        edge="E1", stage="corpus", passed=False, rows=1, suite_digest="", subject_digest="",
        checks=[check("a", "block", False), check("b", "warn", False), check("c", "block", True)],
    )  # fmt: skip
    assert [c.name for c in verdict.blocked_by] == ["a"]


def test_equal_content_has_an_equal_digest_whatever_the_order_of_keys():
    assert digest_of({"a": 1, "b": [1, 2]}) == digest_of({"b": [1, 2], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 1.5})


def test_a_manifest_holds_no_time_so_that_equal_content_gives_equal_manifests():
    fields = set(ArtifactManifest.model_fields)
    assert not [name for name in fields if "time" in name or name.endswith("_at")]


def test_unknown_keys_fail_everywhere():
    assert all(model.model_config.get("extra") == "forbid" for model in contracts())
    assert Recipe.model_config["extra"] == "forbid"
