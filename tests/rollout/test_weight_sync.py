"""A weight update that did not work is noticed before anything is sampled."""

import json
import os
import subprocess

import pytest
import torch
from fake_vllm import FakeVllm
from generators_under_test import LONGEST, Subject, on_double, vllm_generator
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sampling_models import VOCAB, dense_policy, plain, policy

from longstride.errors import CheckpointError, GeneratorError
from longstride.model.huggingface import load_huggingface, save_huggingface
from longstride.rollout import vllm as vllm_module
from longstride.rollout import weights as weights_module
from longstride.rollout.probe import TEMPERATURE, Probe, Scored
from longstride.rollout.weights import WeightFolders


def shifted(model, share):
    """The same model after an update of so much of its weights."""
    moved = dense_policy(seed=5)
    with torch.no_grad():
        for new, old in zip(moved.parameters(), model.parameters(), strict=True):
            new.copy_(old + share * (new - old))
    return moved


def answers(model, probe, continuation=(1, 2, 3)):
    """What a sampler with exactly these weights says about the probe."""
    with torch.no_grad():
        tokens = torch.tensor([probe.tokens + list(continuation)])
        logits = model.logits(model(tokens).hidden_BTD)[0, :-1]
    cut = len(probe.tokens) - 1
    rows = torch.cat([logits[:cut].log_softmax(-1), (logits[cut:] / TEMPERATURE).log_softmax(-1)])
    logp = rows.gather(1, tokens[0, 1:, None])[:, 0].tolist()
    return Scored(logp[:cut], list(continuation), logp[cut:])


def skip(monkeypatch, path):
    """Answer one kind of request ourselves, so that the server never sees it."""
    post = vllm_module.ServerConnection.post
    monkeypatch.setattr(
        vllm_module.ServerConnection,
        "post",
        lambda self, where, body, deadline: (
            {"success": True} if where == path else post(self, where, body, deadline)
        ),
    )


def test_stale_weights_are_refused_naming_both_versions(subject_on_vllm: Subject, monkeypatch):
    generator, model = subject_on_vllm.generator, subject_on_vllm.model
    skip(monkeypatch, "/collective_rpc")
    with pytest.raises(
        CheckpointError, match=r"version 8 the sampler still answers with version 7"
    ):
        generator.sync(shifted(model, 0.3), 8)
    with pytest.raises(GeneratorError, match="no checked weights"):
        generator.generate([[1]], 1, plain(3), 0)


def test_stale_weights_are_refused_even_when_they_moved_less_than_the_tolerance(
    subject_on_vllm: Subject, monkeypatch
):
    generator, model = subject_on_vllm.generator, subject_on_vllm.model
    moved = shifted(model, 1e-5)
    assert generator.sync(moved, 8).probe_difference < 1e-4
    skip(monkeypatch, "/collective_rpc")
    with pytest.raises(CheckpointError, match=r"still answers with version 8"):
        generator.sync(model, 9)


def test_cached_keys_and_values_of_older_weights_are_refused(subject_on_vllm: Subject, monkeypatch):
    generator, model = subject_on_vllm.generator, subject_on_vllm.model
    skip(monkeypatch, "/reset_prefix_cache")
    with pytest.raises(CheckpointError, match=r"disagree: at position (19[2-9]|20\d) "):
        generator.sync(shifted(model, 0.3), 8)


def test_a_good_sync_after_a_failed_one_samples_again(fake: FakeVllm, tmp_path):
    model, moved = dense_policy(), dense_policy(seed=1)
    with on_double(fake, tmp_path) as generator:
        generator.sync(model, 0)
        fake.skip_reload = True
        with pytest.raises(CheckpointError, match="still answers with version 0"):
            generator.sync(moved, 1)
        fake.skip_reload = False
        assert generator.sync(moved, 2).probe_difference < 1e-4
        assert generator.generate([[1]], 1, plain(3), 0)[0][0].policy_version == 2


def test_logprobs_before_temperature_are_refused(fake: FakeVllm, tmp_path):
    fake.raw_logprobs = True
    with (
        on_double(fake, tmp_path) as generator,
        pytest.raises(CheckpointError, match=r"position \d+ of the probe \(token \d+\)"),
    ):
        generator.sync(dense_policy(), 0)


def test_the_error_names_the_worst_position_and_both_values():
    model, probe = dense_policy(), Probe(VOCAB, LONGEST, 1e-3)
    scored = answers(model, probe)
    scored.prompt[4] += 0.25
    scored.prompt[9] -= 0.75
    want = scored.prompt[9] + 0.75
    with pytest.raises(CheckpointError) as caught:
        probe.check(model, 3, scored)
    text = str(caught.value)
    assert "version 3" in text and f"position 10 of the probe (token {probe.tokens[10]})" in text
    assert f"{scored.prompt[9]:.6f}" in text and f"{want:.6f}" in text


def test_a_sampler_that_answers_nan_is_refused():
    model, probe = dense_policy(), Probe(VOCAB, LONGEST, 10.0)
    scored = answers(model, probe)
    scored.prompt[0] = float("nan")
    with pytest.raises(CheckpointError, match="position 1 of the probe"):
        probe.check(model, 0, scored)


def test_a_policy_that_diverged_is_named_before_its_sampler():
    model, probe = dense_policy(), Probe(VOCAB, LONGEST, 1e-3)
    scored = answers(model, probe)
    model.head.weight.data[3] = float("nan")
    with pytest.raises(CheckpointError, match="not finite; its weights have diverged"):
        probe.check(model, 1, scored)


@given(st.floats(0.0, 0.05), st.floats(1e-9, 1.0), st.integers(0, 5))
def test_rounding_is_never_taken_for_stale_weights(noise, share, seed):
    """A coarse sampler is as far from the old policy as from the new one."""
    old = dense_policy()
    new = shifted(old, share)
    probe = Probe(VOCAB, 80, tolerance=1.0)
    probe.check(old, 0, answers(old, probe))
    scored = answers(new, probe)
    draw = torch.Generator().manual_seed(seed)
    jitter = noise * torch.randn(len(scored.prompt), generator=draw)
    noisy = (torch.tensor(scored.prompt) + jitter).tolist()
    probe.check(new, 1, Scored(noisy, scored.continuation, scored.continuation_logprobs))


@pytest.mark.parametrize("longest", [3, 20, 208, 4096])
def test_the_probe_fits_the_longest_sequence(longest):
    probe = Probe(VOCAB, longest, 1e-3)
    assert len(probe.tokens) >= 2 and probe.new_tokens >= 1
    assert len(probe.tokens) + probe.new_tokens <= longest


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_every_version_has_a_complete_folder_and_only_the_last_stays(tmp_path, kind):
    model = dense_policy(kind=kind)
    folders = WeightFolders(model, str(tmp_path))
    first, second = folders.write(model, 0), folders.write(shifted_head(model), 1)
    folders.keep_only(second)
    assert [path.name for path in folders.root.iterdir()] == ["v1"] and not first.exists()
    again = load_huggingface(second)
    assert torch.equal(again.head.weight, model.head.weight)
    folders.remove()
    assert not folders.root.exists()


def shifted_head(model):
    with torch.no_grad():
        model.head.weight.add_(1.0)
    return model


def test_a_write_that_fails_leaves_the_version_before(tmp_path, monkeypatch):
    model = dense_policy()
    folders = WeightFolders(model, str(tmp_path))
    kept = folders.write(model, 0)

    def full(model, directory):
        directory.mkdir()
        (directory / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights_module, "save_huggingface", full)
    with pytest.raises(GeneratorError, match=r"version 1 cannot be written .* No space left"):
        folders.write(model, 1)
    assert kept.is_dir() and not (folders.root / "v1").exists()


def test_weights_go_to_the_temporary_folder_where_shared_memory_is_small(tmp_path, monkeypatch):
    monkeypatch.setattr(weights_module, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(weights_module.tempfile, "tempdir", str(tmp_path))
    folders = WeightFolders(dense_policy())
    assert folders.root.parent == tmp_path
    folders.remove()


def test_folders_that_a_killed_process_left_in_memory_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(weights_module, "SHARED_MEMORY", tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    orphan, ours, foreign = (
        tmp_path / f"longstride-weights-{name}"
        for name in (f"{dead.pid}-x", f"{os.getpid()}-x", "y")
    )
    for folder in (orphan, ours, foreign):
        (folder / "v1").mkdir(parents=True)
    folders = WeightFolders(dense_policy())
    assert not orphan.exists() and ours.exists() and foreign.exists()
    folders.remove()


def test_a_hybrid_is_refused_before_anything_starts(tmp_path):
    with (
        vllm_generator(tmp_path / "vllm.log") as generator,
        pytest.raises(CheckpointError, match="lightning"),
    ):
        generator.sync(policy(), 0)


def save_tied(model, directory):
    """As transformers writes a model with tied embeddings: one matrix for both ends."""
    save_huggingface(model, directory)
    weights = load_file(directory / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((directory / "config.json").read_text())
    settings["tie_word_embeddings"] = True
    (directory / "config.json").write_text(json.dumps(settings))


@pytest.mark.vllm
def test_tied_embeddings_which_vllm_reloads_wrongly_are_caught(tmp_path, monkeypatch):
    """vLLM's CPU build keeps the old head packed; it answers without an error all the same."""
    models = dense_policy(0), dense_policy(1)
    for model in models:
        model.head.weight.data.copy_(model.embed.weight)
    monkeypatch.setattr(weights_module, "save_huggingface", save_tied)
    with vllm_generator(tmp_path / "vllm.log", start_seconds=540) as generator:
        assert generator.sync(models[0], 0).probe_difference < 1e-4
        with pytest.raises(CheckpointError, match="after the update to version 1 sampler and trai"):
            generator.sync(models[1], 1)
        with pytest.raises(GeneratorError, match="no checked weights"):
            generator.generate([[1]], 1, plain(3), 0)
