"""A training step in one process: the layer kernels in order, experts in one place or spread.

The plain form of the chips' joint step: gradients of every parameter from one call.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.compute.architecture import Architecture, Routing
from emulator.compute.causal_attention import BatchShape
from emulator.compute.mixed_precision import Precision, as_operand
from emulator.compute.parameters import TRAINED, Parameters, dense_layout, expert_layout
from emulator.compute.rope_settings import RopeSettings
from emulator.compute.training_attention import (
    AttentionTape,
    attend_backward,
    attend_forward,
    embed,
    embed_backward,
)
from emulator.compute.training_experts import ExpertsTape, experts_backward, experts_forward
from emulator.compute.training_loss import expert_share, head
from emulator.compute.training_router import RouterTape, route_backward, route_forward

# Where one owner's rows lie among those of all tokens: [pairs] index into [tokens * k].
Places = np.ndarray


def small_architecture(
    *, tied: bool = False, normalise: bool = True, experts_per_token: int = 2, layers: int = 2
) -> Architecture:
    """Six experts, two query heads per key head; all widths differ."""
    return Architecture(
        family=TRAINED,
        layers=layers,
        hidden=20,
        heads=4,
        kv_heads=2,
        head_dim=8,
        score_scale=8**-0.5,
        query_key_norms=True,
        windows=(0,) * layers,
        experts=6,
        experts_per_token=experts_per_token,
        expert_intermediate=7,
        routing=Routing(normalise=normalise),
        vocab=37,
        max_context_tokens=512,
        tied_embeddings=tied,
        norm_eps=1e-6,
        rope=RopeSettings(theta=10_000.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Dense weights, and each owner's experts: a run of every layer's."""

    dense: Parameters
    owners: tuple[Parameters, ...]

    @classmethod
    def random(cls, arch: Architecture, *, seed: int = 0, dtype: type = np.float32) -> "Model":
        rng = np.random.default_rng(seed)
        made = []
        for layout in (dense_layout(arch), expert_layout(arch, [arch.experts] * arch.layers)):
            parameters = Parameters(layout, rng.standard_normal(layout.size).astype(dtype))
            for name in parameters:
                if name.endswith("norm"):
                    parameters[name][:] = rng.uniform(0.5, 1.5, parameters[name].shape)
                else:
                    parameters[name][:] *= 0.3
            made.append(parameters)
        return cls(dense=made[0], owners=(made[1],))

    def spread(self, owners: int) -> "Model":
        (whole,) = self.owners
        arch = self.dense.layout.architecture
        layout = expert_layout(arch, [arch.experts // owners] * arch.layers)
        shares = [Parameters.zeros(layout) for _ in range(owners)]
        for name in whole:
            for share, part in zip(shares, np.split(whole[name], owners), strict=True):
                share[name][:] = part
        return Model(dense=self.dense, owners=tuple(shares))

    def zeros(self) -> "Model":
        return Model(
            dense=Parameters(self.dense.layout, np.zeros_like(self.dense.flat)),
            owners=tuple(Parameters(o.layout, np.zeros_like(o.flat)) for o in self.owners),
        )

    def by_name(self) -> dict[str, np.ndarray]:
        """Every parameter by name, experts of all owners together."""
        named = {name: self.dense[name] for name in self.dense}
        for name in self.owners[0]:
            named[name] = np.concatenate([owner[name] for owner in self.owners])
        return named


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The tapes of one layer on one chip, and the origin of each owner's rows."""

    attention: AttentionTape
    router: RouterTape
    places: list[Places]
    experts: list[ExpertsTape]
    expert_rows: np.ndarray  # [tokens, k, hidden], unweighted


def training_step(
    model: Model,
    tokens: np.ndarray,
    targets: np.ndarray,
    *,
    precision: Precision = Precision.FP32,
    balance: float = 0.0,
    grads: Model | None = None,
) -> tuple[float, Model, np.ndarray]:
    """Loss and gradients of `tokens` [sequences, length] against `targets`, and the last x.

    The loss is the mean cross-entropy of counted targets plus `balance` times every layer's balance
    loss. Gradients are added to `grads`, if given.
    """
    arch = model.dense.layout.architecture
    shape = BatchShape(sequences=tokens.shape[0], length=tokens.shape[1])
    counted = int((targets >= 0).sum())
    grads = grads or model.zeros()
    layers: list[Layer] = []
    shares: list[np.ndarray] = []
    loss = 0.0
    x = embed(model.dense, tokens.ravel(), precision)
    for number in range(arch.layers):
        layer, x = _layer_forward(model, number, x, shape, precision)
        layers.append(layer)
        counts = np.bincount(layer.router.chosen.ravel(), minlength=arch.experts)
        shares.append(expert_share(counts, shape.tokens))
        loss += balance * balance_loss(shares[-1], layer.router.probabilities.mean(axis=0))
    total, found, grad = head(
        model.dense, grads.dense, x, targets.ravel(), 1.0 / counted, precision
    )
    assert found == counted
    assert grad is not None
    scale = balance * arch.experts / shape.tokens
    for number in reversed(range(arch.layers)):
        grad = _layer_backward(model, grads, number, layers[number], grad, shares[number], scale)
    embed_backward(model.dense, grads.dense, tokens.ravel(), grad)
    return loss + total / counted, grads, x


def _places(chosen: np.ndarray, model: Model) -> tuple[list[Places], list[np.ndarray]]:
    experts = model.dense.layout.architecture.experts
    order = np.argsort(chosen.ravel(), kind="stable")
    counts = np.bincount(chosen.ravel(), minlength=experts)
    by_owner: Sequence[np.ndarray] = np.split(counts, len(model.owners))
    ends = np.cumsum([part.sum() for part in by_owner])[:-1]
    return np.split(order, ends), list(by_owner)


def _layer_forward(
    model: Model, number: int, x: np.ndarray, shape: BatchShape, precision: Precision
) -> tuple[Layer, np.ndarray]:
    attention = attend_forward(model.dense, number, x, shape, precision)
    router = route_forward(model.dense, number, attention.residual, precision)
    k = router.chosen.shape[1]
    places, counts = _places(router.chosen, model)
    rows = np.empty((shape.tokens * k, x.shape[1]), dtype=x.dtype)
    tapes = []
    for owner, place, count in zip(model.owners, places, counts, strict=True):
        sent = router.hidden[place // k]
        rows[place], tape = experts_forward(owner, number, sent, count, precision)
        tapes.append(tape)
    by_token = rows.reshape(shape.tokens, k, -1)
    x = attention.residual + np.einsum("tk,tkh->th", router.weights, by_token)
    layer = Layer(
        attention=attention, router=router, places=places, experts=tapes, expert_rows=by_token
    )
    return layer, x


def balance_loss(share: np.ndarray, mean_probability: np.ndarray) -> float:
    """A layer's, unweighted, from [experts] each over the whole batch; see training_loss."""
    return float(len(share) * np.dot(share.astype(np.float64), mean_probability))


def _layer_backward(
    model: Model,
    grads: Model,
    number: int,
    layer: Layer,
    grad_x: np.ndarray,
    share: np.ndarray,
    balance_scale: float,
) -> np.ndarray:
    layer.router.grad_weights = np.einsum("tkh,th->tk", layer.expert_rows, grad_x)
    grad_rows = layer.router.weights[:, :, None] * grad_x[:, None, :]
    flat = as_operand(grad_rows, layer.router.precision).reshape(-1, grad_x.shape[1])
    back = np.empty_like(flat)
    for index, place in enumerate(layer.places):
        back[place] = experts_backward(
            model.owners[index], grads.owners[index], number, layer.experts[index], flat[place]
        )
    grad_residual = route_backward(
        model.dense,
        grads.dense,
        number,
        layer.router,
        grad_x,
        back.reshape(grad_rows.shape).sum(axis=1),
        share,
        balance_scale,
    )
    return attend_backward(model.dense, grads.dense, number, layer.attention, grad_residual)


def random_batch(
    arch: Architecture, *, sequences: int = 3, length: int = 11, seed: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [sequences, length] and their successors; the last of each has no target."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, arch.vocab, (sequences, length)).astype(np.int32)
    targets = np.full_like(tokens, -1)
    targets[:, :-1] = tokens[:, 1:]
    return tokens, targets
