"""Mixture of SwiGLU experts: softmax over all experts, keep the top k, renormalise.

Legend: N tokens, E experts, K experts per token, M = N x K routed tokens sorted by expert, X hidden
width, F expert width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from longstride.model.grouped import apply_experts, expert_gradients, pull_back_experts
from longstride.model.kernels import operations
from longstride.model.norms import Float32Module, at_least_float32, without_autocast
from schemas.model import ModelConfig


class Routing(NamedTuple):
    """Where each token goes, and what the load-balancing loss needs."""

    weights_NK: Tensor
    """Renormalised weights of the chosen experts, fp32."""
    experts_NK: Tensor
    """Chosen experts."""
    probs_NE: Tensor
    """Softmax over all experts, fp32."""


class Balance(NamedTuple):
    """One layer's share of the load-balancing loss; sums over the tokens that are not padding."""

    counts_E: Tensor
    """Top-k assignments by expert; carries no gradient."""
    probs_E: Tensor
    """Sum of the router's probabilities by expert."""


class Router(Float32Module):
    """Linear router; weight and arithmetic stay fp32 when the model is cast down."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.num_experts, config.hidden_size))
        self.top_k = config.experts_per_token

    def forward(self, x_NX: Tensor) -> Routing:
        """Choose experts for N tokens."""
        with without_autocast(x_NX):
            logits_NE = nn.functional.linear(x_NX.to(self.weight.dtype), self.weight)
            probs_NE = logits_NE.softmax(-1)
            top_NK, experts_NK = logits_NE.topk(self.top_k, dim=-1)
            # A softmax over the kept logits is the renormalised softmax over all of them.
            return Routing(top_NK.softmax(-1), experts_NK, probs_NE)


class _Sorted(NamedTuple):
    """Routed tokens grouped by expert."""

    token_M: Tensor
    """Source token of each routed token."""
    slot_NK: Tensor
    """Where each token's k-th copy went."""
    ends_E: Tensor
    """Where each expert's run of rows ends, int32."""


def _sort_by_expert(experts_NK: Tensor, num_experts: int) -> _Sorted:
    tokens, top_k = experts_NK.shape
    flat_M = experts_NK.reshape(-1)
    order_M = torch.argsort(flat_M, stable=True)
    slot_M = torch.empty_like(order_M)
    slot_M[order_M] = torch.arange(order_M.numel(), device=order_M.device)
    ends_E = torch.bincount(flat_M, minlength=num_experts).cumsum(0, dtype=torch.int32)
    return _Sorted(order_M // top_k, slot_M.view(tokens, top_k), ends_E)


class _Forward(NamedTuple):
    out_NX: Tensor
    routed_MX: Tensor
    pre_M2F: Tensor
    act_MF: Tensor
    y_MX: Tensor


def _swiglu(pre_M2F: Tensor) -> Tensor:
    """Return SiLU(gate) x up."""
    if operations.usable(pre_M2F):
        return operations.swiglu(pre_M2F)
    gate, up = pre_M2F.chunk(2, dim=-1)
    return nn.functional.silu(gate).mul_(up)


def _swiglu_backward(pre_M2F: Tensor, dact_MF: Tensor) -> Tensor:
    if operations.usable(pre_M2F, dact_MF):
        return operations.swiglu_backward(pre_M2F, dact_MF)
    dpre = torch.empty_like(pre_M2F)
    gate, up = pre_M2F.chunk(2, dim=-1)
    dgate, dup = dpre.chunk(2, dim=-1)
    sigmoid = torch.sigmoid(gate)
    silu = gate * sigmoid
    torch.mul(dact_MF, silu, out=dup)
    # d silu(x) / dx = sigmoid + silu (1 - sigmoid)
    slope = torch.addcmul(sigmoid + silu, silu, sigmoid, value=-1)
    torch.mul(slope.mul_(up), dact_MF, out=dgate)
    return dpre


def _run_experts(
    x_NX: Tensor, weights_NK: Tensor, plan: _Sorted, w13: Tensor, w2: Tensor
) -> _Forward:
    routed = x_NX.index_select(0, plan.token_M)
    pre = apply_experts(routed, w13, plan.ends_E)
    act = _swiglu(pre)
    y = apply_experts(act, w2, plan.ends_E)
    out = _combine(y, weights_NK.to(y.dtype), plan.slot_NK)
    return _Forward(out, routed, pre, act, y)


def _combine(y_MX: Tensor, weights_NK: Tensor, slot_NK: Tensor) -> Tensor:
    """Sum each token's K copies by weight; a gather, so the order of sums is fixed."""
    if operations.usable(y_MX, weights_NK):
        return operations.combine(y_MX, weights_NK.contiguous(), slot_NK, None, 0.0)
    out = y_MX.index_select(0, slot_NK[:, 0]).mul_(weights_NK[:, :1])
    for k in range(1, slot_NK.shape[1]):
        out.addcmul_(y_MX.index_select(0, slot_NK[:, k]), weights_NK[:, k : k + 1])
    return out


class _Experts(torch.autograd.Function):
    """All experts in one node: one matrix product an expert, gathers instead of scatters."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights_NK: Tensor, experts_NK: Tensor, w13: Tensor, w2: Tensor
    ) -> Tensor:
        plan = _sort_by_expert(experts_NK, w13.shape[0])
        run = _run_experts(x, weights_NK, plan, w13, w2)
        ctx.save_for_backward(
            run.routed_MX, run.pre_M2F, run.act_MF, run.y_MX, weights_NK, w13, w2, plan.token_M,
            plan.slot_NK, plan.ends_E,
        )  # fmt: skip
        return run.out_NX

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, None, Tensor, Tensor]:
        routed, pre, act, y, weights_NK, w13, w2, token_M, slot_NK, ends_E = ctx.saved_tensors
        tokens, top_k = slot_NK.shape
        grad_M = grads[0].index_select(0, token_M)
        dweights = (grad_M * y).sum(-1, dtype=weights_NK.dtype).index_select(0, slot_NK.view(-1))
        weight_M = torch.empty_like(weights_NK.view(-1))
        weight_M[slot_NK.view(-1)] = weights_NK.reshape(-1)
        grad_M.mul_(weight_M.to(grad_M.dtype)[:, None])
        dw2 = expert_gradients(grad_M, act, ends_E)
        dpre = _swiglu_backward(pre, pull_back_experts(grad_M, w2, ends_E))
        dw13 = expert_gradients(dpre, routed, ends_E)
        drouted = pull_back_experts(dpre, w13, ends_E)
        dx = drouted.index_select(0, slot_NK[:, 0])
        for k in range(1, top_k):
            dx += drouted.index_select(0, slot_NK[:, k])
        return dx, dweights.view(tokens, top_k), None, dw13, dw2


class ExpertMixture(nn.Module):
    """Router and experts; with one expert, a plain SwiGLU MLP without router."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts, width, inner = config.num_experts, config.hidden_size, config.expert_hidden_size
        self.router = Router(config) if experts > 1 else None
        self.w13 = nn.Parameter(torch.zeros(experts, 2 * inner, width))
        self.w2 = nn.Parameter(torch.zeros(experts, width, inner))

    def forward(self, x_BTX: Tensor, valid_BT: Tensor | None = None) -> tuple[Tensor, Balance]:
        """Return the mixture's output, of the shape of `x_BTX`, and its routing statistics."""
        flat = x_BTX.reshape(-1, x_BTX.shape[-1])
        if self.router is None:
            empty = flat.new_zeros(0, dtype=at_least_float32(flat.dtype))
            return self._dense(flat).view_as(x_BTX), Balance(empty, empty)
        routing = self.router(flat)
        out = self._experts(flat, routing)
        return out.view_as(x_BTX), _balance(routing, valid_BT)

    def step(self, x_RX: Tensor, base_RX: Tensor, alpha: float) -> Tensor:
        """Return the mixture's output for R tokens plus alpha x base, without statistics."""
        if self.router is None:
            return torch.add(self._dense(x_RX), base_RX, alpha=alpha)
        if operations.usable(x_RX, self.w13):
            return self._fused_step(x_RX, base_RX, alpha)
        return torch.add(self._experts(x_RX, self.router(x_RX)), base_RX, alpha=alpha)

    def _fused_step(self, x_RX: Tensor, base_RX: Tensor, alpha: float) -> Tensor:
        assert self.router is not None
        logits = nn.functional.linear(x_RX, self.router.weight)
        weights, _, slots, source, ends = operations.route(logits, self.router.top_k)
        pre = apply_experts(x_RX.index_select(0, source), self.w13, ends)
        y = apply_experts(operations.swiglu(pre), self.w2, ends)
        return operations.combine(y, weights, slots, base_RX, alpha)

    def _dense(self, x_NX: Tensor) -> Tensor:
        gate, up = nn.functional.linear(x_NX, self.w13[0]).chunk(2, dim=-1)
        return nn.functional.linear(nn.functional.silu(gate) * up, self.w2[0])

    def _experts(self, x_NX: Tensor, routing: Routing) -> Tensor:
        weights, experts, _ = routing
        with without_autocast(x_NX):
            x_NX = x_NX.to(self.w13.dtype)
            if torch.is_grad_enabled():
                return _Experts.apply(x_NX, weights, experts, self.w13, self.w2)  # type: ignore[no-untyped-call, no-any-return]
            plan = _sort_by_expert(experts, self.w13.shape[0])
            return _run_experts(x_NX, weights, plan, self.w13, self.w2).out_NX


def _balance(routing: Routing, valid_BT: Tensor | None) -> Balance:
    chosen_NE = torch.zeros_like(routing.probs_NE, requires_grad=False)
    chosen_NE = chosen_NE.scatter(1, routing.experts_NK, 1.0)
    if valid_BT is None:
        return Balance(chosen_NE.sum(0), routing.probs_NE.sum(0))
    valid_N = valid_BT.reshape(-1).to(routing.probs_NE.dtype)
    return Balance(valid_N @ chosen_NE, valid_N @ routing.probs_NE)


def load_balancing_loss(layers: list[Balance], tokens: Tensor | int) -> Tensor:
    """Return E x sum_e (share of assignments to e) x (mean probability of e), over all layers.

    Switch Transformer (arXiv 2101.03961) equations 4 to 6, pooled over layers; perfectly even
    routing gives K, the experts per token. `tokens` counts a layer's tokens without padding.
    """
    rows = tokens * len(layers)
    counts_E = torch.stack([layer.counts_E for layer in layers]).sum(0) / rows
    probs_E = torch.stack([layer.probs_E for layer in layers]).sum(0) / rows
    return counts_E.shape[0] * (counts_E.detach() * probs_E).sum()
