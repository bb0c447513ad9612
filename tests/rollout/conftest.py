"""Generators under test: the native one, and vLLM's over a double and over the real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_vllm import FakeVllm
from generators_under_test import Subject, on_double, vllm_generator
from sampling_models import dense_policy, policy

from longstride.rollout.native import NativeGenerator
from longstride.rollout.vllm import VllmGenerator


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    with FakeVllm() as running:
        yield running


@pytest.fixture(scope="session")
def real_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmGenerator]:
    """One real server for all tests; each test hands it the weights that it wants."""
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with vllm_generator(log, start_seconds=540) as generator:
        generator.sync(dense_policy(), 0)
        yield generator


def _subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "native":
        model = policy()
        generator = NativeGenerator(model)
        generator.sync(model, 7)
        yield Subject(generator, model)
        return
    model = dense_policy()
    if request.param == "vllm":
        generator = request.getfixturevalue("real_vllm")
        generator.sync(model, 7)
        yield Subject(generator, model)
        return
    fake = request.getfixturevalue("fake")
    with on_double(fake, tmp_path) as generator:
        generator.sync(model, 7)
        yield Subject(generator, model)


EVERY_GENERATOR = ["native", "double", pytest.param("vllm", marks=pytest.mark.vllm)]
subject = pytest.fixture(params=EVERY_GENERATOR)(_subject)
subject_on_vllm = pytest.fixture(params=EVERY_GENERATOR[1:])(_subject)
