"""The model on a GPU against itself on the CPU; run with `make test-gpu` where one is."""

import pytest
import torch

from longstride.model import fla
from longstride.model.chunked import chunked_attention
from longstride.model.hybrid import HybridModel
from longstride.model.layout import chunk_layout
from longstride.model.lightning import decay_slopes
from longstride.model.logprobs import token_logprobs
from longstride.rollout.native import NativeGenerator
from longstride.rollout.protocol import SamplingSettings
from schemas.model import ModelConfig

pytestmark = pytest.mark.gpu

CONFIG = ModelConfig(
    vocab_size=256, hidden_size=128, block_types=["lightning", "softmax", "lightning"], num_heads=4,
    num_kv_heads=2, head_dim=32, rotary_dim=16, expert_hidden_size=128, init_std=0.1,
)  # fmt: skip
SEGMENTS = torch.tensor([[0] * 70 + [1] * 90 + [-1] * 40, [0] * 200])


def models() -> tuple[HybridModel, HybridModel]:
    ours, gpu = HybridModel(CONFIG), HybridModel(CONFIG)
    ours.initialise(0)
    gpu.initialise(0)
    return ours, gpu.cuda()


def tokens() -> torch.Tensor:
    return torch.randint(0, 256, (2, 200), generator=torch.Generator().manual_seed(0))


def test_fp32_logits_and_gradients_equal_those_of_the_cpu():
    results = []
    for model in models():
        device = model.embed.weight.device
        batch, segments = tokens().to(device), SEGMENTS.to(device)
        hidden = model(batch, segments).hidden_BTD
        logp, _ = token_logprobs(model, hidden[:, :-1], batch[:, 1:])
        torch.where(segments[:, 1:] >= 0, logp, 0.0).mean().backward()
        grads = [parameter.grad.cpu() for parameter in model.parameters()]
        results.append((hidden[segments >= 0].detach().cpu(), grads))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-3, rtol=1e-3)
    for mine, theirs in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-2)


def test_bf16_on_the_gpu_stays_near_fp32():
    cpu, gpu = models()
    want = cpu(tokens(), SEGMENTS).hidden_BTD[SEGMENTS >= 0]
    got = gpu.bfloat16()(tokens().cuda(), SEGMENTS.cuda()).hidden_BTD.float().cpu()[SEGMENTS >= 0]
    assert (got - want).norm() / want.norm() < 0.05


@pytest.mark.parametrize("packed", [False, True])
def test_the_fla_kernel_computes_the_same_recurrence(packed):
    pytest.importorskip("fla", reason="flash-linear-attention is not installed")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 200, 3 * 4 * 32, generator=generator).cuda().bfloat16().requires_grad_()
    slopes = decay_slopes(4, 1, 8).cuda()
    layout = chunk_layout(200, 64, SEGMENTS.cuda() if packed else None)
    pulls = torch.randn(2, 200, 128, generator=generator).cuda()
    results = []
    for form in (chunked_attention, fla.fla_attention):
        x.grad = None
        out = form(x, slopes, 4, layout).float()
        (out * pulls).sum().backward()
        results.append((out.detach(), x.grad.float()))
    for mine, theirs in zip(*results, strict=True):
        assert (mine - theirs).norm() / mine.norm() < 0.02


def test_greedy_samples_equal_those_of_the_cpu():
    prompts = tokens()[:, :20].tolist()
    settings = SamplingSettings(max_new_tokens=24, temperature=0.0)
    cpu, gpu = (NativeGenerator(model).generate(prompts, 1, settings, seed=0) for model in models())
    assert [g[0].tokens for g in cpu] == [g[0].tokens for g in gpu]


def test_sampler_and_trainer_agree_in_bf16_with_the_fp32_head():
    _, gpu = models()
    gpu.bfloat16()
    prompts = tokens()[:, :20].tolist()
    groups = NativeGenerator(gpu).generate(prompts, 8, SamplingSettings(max_new_tokens=64), seed=1)
    sampler, trainer = [], []
    for prompt, group in zip(prompts, groups, strict=True):
        for sample in group:
            row = torch.tensor([prompt + sample.tokens]).cuda()
            with torch.no_grad():
                logp, _ = token_logprobs(gpu, gpu(row).hidden_BTD[:, :-1], row[:, 1:])
            trainer += logp[0, len(prompt) - 1 :].exp().tolist()
            sampler += torch.tensor(sample.logprobs).exp().tolist()
    assert torch.corrcoef(torch.tensor([sampler, trainer]))[0, 1] > 0.99
