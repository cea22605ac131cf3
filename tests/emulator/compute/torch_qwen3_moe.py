"""The decoder in plain PyTorch, for autograd's gradients.

`product` multiplies two operands: `torch.matmul`, or `rounded_product`, which rounds operands to
BF16 forward and backward, like a tensor engine that accumulates in FP32.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from emulator.compute.architecture import Architecture

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def to_bfloat16(values: torch.Tensor) -> torch.Tensor:
    return values.bfloat16().float()


def straight_through(values: torch.Tensor) -> torch.Tensor:
    """Rounded to BF16; its gradient passes unchanged."""
    return values + (to_bfloat16(values) - values).detach()


class _RoundedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, left, right):  # type: ignore[no-untyped-def]
        left, right = to_bfloat16(left), to_bfloat16(right)
        ctx.save_for_backward(left, right)
        return left @ right

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        left, right = ctx.saved_tensors
        grad = to_bfloat16(grad)
        return grad @ right.mT, left.mT @ grad


rounded_product: Product = _RoundedProduct.apply


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _rotated(x: torch.Tensor, theta: float) -> torch.Tensor:
    """`x` [sequences, heads, length, head_dim]."""
    length, head_dim = x.shape[-2:]
    frequency = theta ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.arange(length)[:, None] * frequency
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attended(
    w: Mapping[str, torch.Tensor], prefix: str, x: torch.Tensor, arch: Architecture, mul: Product
) -> torch.Tensor:
    """Attention's addition to `x` [sequences, length, hidden]."""
    sequences, length, _ = x.shape
    normed = _norm(x, w[f"{prefix}.input_norm"], arch.norm_eps)
    qkv = mul(normed.flatten(0, 1), w[f"{prefix}.qkv"])
    split = qkv.view(sequences, length, -1, arch.head_dim).transpose(1, 2)
    query, key, value = split.split([arch.heads, arch.kv_heads, arch.kv_heads], dim=1)
    query = _rotated(_norm(query, w[f"{prefix}.query_norm"], arch.norm_eps), arch.rope.theta)
    key = _rotated(_norm(key, w[f"{prefix}.key_norm"], arch.norm_eps), arch.rope.theta)
    group = arch.heads // arch.kv_heads
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = mul(query * arch.head_dim**-0.5, key.mT)
    future = torch.ones(length, length).triu(1).bool()
    scores = scores.masked_fill(future, -torch.inf)
    # The rounding of exponentials is of those over the highest, or over 1 where they stay small.
    highest = scores.detach().amax(-1, keepdim=True)
    exponentials = (scores - highest * (highest.abs().max() > 60)).exp()
    mixed = mul(exponentials, value) / exponentials.sum(-1, keepdim=True)
    flat = mixed.transpose(1, 2).reshape(sequences * length, -1)
    return mul(flat, w[f"{prefix}.output"]).view_as(x)


def _feed_forward(
    w: Mapping[str, torch.Tensor], prefix: str, x: torch.Tensor, arch: Architecture, mul: Product
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts' addition to `x` [tokens, hidden], and the layer's balance loss."""
    hidden = _norm(x, w[f"{prefix}.post_norm"], arch.norm_eps)
    probabilities = mul(hidden, w[f"{prefix}.router"]).softmax(-1)
    weights, chosen = probabilities.topk(arch.experts_per_token)
    if arch.routing.normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    share = torch.bincount(chosen.flatten(), minlength=arch.experts) / len(x)
    out = torch.zeros_like(x)
    for expert in range(arch.experts):
        token, slot = torch.where(chosen == expert)
        both = mul(hidden[token], w[f"{prefix}.gate_up"][expert])
        gate, up = both.chunk(2, dim=-1)
        row = mul(torch.nn.functional.silu(gate) * up, w[f"{prefix}.down"][expert])
        out = out.index_add(0, token, row * weights[token, slot, None])
    return out, arch.experts * (share * probabilities.mean(0)).sum()


def loss_and_gradients(
    named: Mapping[str, np.ndarray],
    arch: Architecture,
    tokens: np.ndarray,
    targets: np.ndarray,
    *,
    product: Product,
    balance: float,
) -> tuple[float, dict[str, np.ndarray]]:
    """`training_step` by autograd; `named` are our names and shapes."""
    leaves = {
        name: torch.tensor(value, dtype=torch.float32, requires_grad=True)
        for name, value in named.items()
    }
    rounded = product is rounded_product
    w = {name: straight_through(leaf) if rounded else leaf for name, leaf in leaves.items()}
    x = w["embedding"][torch.tensor(tokens, dtype=torch.long)]
    loss = torch.zeros(())
    for layer in range(arch.layers):
        prefix = f"layers.{layer}"
        x = x + attended(w, prefix, x, arch, product)
        added, unbalance = _feed_forward(w, prefix, x.flatten(0, 1), arch, product)
        x = x + added.view_as(x)
        loss = loss + balance * unbalance
    matrix = w["embedding"].T if arch.tied_embeddings else w["lm_head"]
    normed = _norm(x.flatten(0, 1), w["final_norm"], arch.norm_eps)
    flat_targets = torch.tensor(targets.ravel(), dtype=torch.long)
    loss = loss + torch.nn.functional.cross_entropy(
        product(normed, matrix), flat_targets, ignore_index=-1
    )
    loss.backward()
    return loss.item(), {name: leaf.grad.numpy() for name, leaf in leaves.items()}
