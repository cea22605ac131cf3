"""Loss and gradients of a whole small model: against finite differences, PyTorch's autograd on
transformers' own model, a second writing with the same roundings, and themselves when spread.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from emulator.compute.adamw import AdamW, AdamWSettings
from emulator.compute.architecture import Architecture
from emulator.compute.mixed_precision import Precision
from emulator.compute.rope_settings import read_rope_settings
from emulator.compute.training_attention import embed, embed_backward
from tests.emulator.compute.torch_qwen3_moe import loss_and_gradients, rounded_product
from tests.emulator.compute.whole_training_step import (
    Model,
    random_batch,
    small_architecture,
    training_step,
)

VARIANTS = list(itertools.product([False, True], [False, True]))
BALANCE = 0.05


def relative_distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def distances(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> dict[str, float]:
    assert ours.keys() == theirs.keys()
    return {name: relative_distance(ours[name], theirs[name]) for name in ours}


def transformers_model(
    named: Mapping[str, np.ndarray], arch: Architecture, **rope: float | str
) -> Qwen3MoeForCausalLM:
    """transformers' model with our weights; `rope` is what its rotary settings say besides."""
    config = Qwen3MoeConfig(
        vocab_size=arch.vocab,
        hidden_size=arch.hidden,
        num_hidden_layers=arch.layers,
        num_attention_heads=arch.heads,
        num_key_value_heads=arch.kv_heads,
        head_dim=arch.head_dim,
        num_experts=arch.experts,
        num_experts_per_tok=arch.experts_per_token,
        moe_intermediate_size=arch.expert_intermediate,
        norm_topk_prob=arch.routing.normalise,
        tie_word_embeddings=arch.tied_embeddings,
        rms_norm_eps=arch.norm_eps,
        router_aux_loss_coef=BALANCE,
        rope_parameters={"rope_type": "default", "rope_theta": arch.rope.theta} | rope,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    model = Qwen3MoeForCausalLM(config)
    state = {name: torch.tensor(value) for name, value in in_their_names(named, arch).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert unexpected == []
    assert missing == (["lm_head.weight"] if arch.tied_embeddings else [])
    return model


def in_their_names(named: Mapping[str, np.ndarray], arch: Architecture) -> dict[str, np.ndarray]:
    """transformers' names, [outputs, inputs]; the experts of a layer are one tensor there too."""
    theirs = {
        "model.embed_tokens.weight": named["embedding"],
        "model.norm.weight": named["final_norm"],
    }
    if not arch.tied_embeddings:
        theirs["lm_head.weight"] = named["lm_head"].T
    cuts = np.cumsum([arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim])
    for layer in range(arch.layers):
        ours, prefix = f"layers.{layer}", f"model.layers.{layer}"
        query, key, value = np.split(named[f"{ours}.qkv"], cuts, axis=1)
        theirs |= {
            f"{prefix}.input_layernorm.weight": named[f"{ours}.input_norm"],
            f"{prefix}.self_attn.q_proj.weight": query.T,
            f"{prefix}.self_attn.k_proj.weight": key.T,
            f"{prefix}.self_attn.v_proj.weight": value.T,
            f"{prefix}.self_attn.q_norm.weight": named[f"{ours}.query_norm"],
            f"{prefix}.self_attn.k_norm.weight": named[f"{ours}.key_norm"],
            f"{prefix}.self_attn.o_proj.weight": named[f"{ours}.output"].T,
            f"{prefix}.post_attention_layernorm.weight": named[f"{ours}.post_norm"],
            f"{prefix}.mlp.gate.weight": named[f"{ours}.router"].T,
            f"{prefix}.mlp.experts.gate_up_proj": named[f"{ours}.gate_up"].transpose(0, 2, 1),
            f"{prefix}.mlp.experts.down_proj": named[f"{ours}.down"].transpose(0, 2, 1),
        }
    return theirs


def their_loss(
    model: Qwen3MoeForCausalLM, tokens: np.ndarray, targets: np.ndarray
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Cross-entropy of transformers' logits, and each layer's router logits."""
    out = model(input_ids=torch.tensor(tokens, dtype=torch.long), output_router_logits=True)
    flat = torch.tensor(targets.ravel(), dtype=torch.long)
    loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), flat, ignore_index=-1)
    return loss, out.router_logits


def balance_of_layer(logits: torch.Tensor, k: int) -> torch.Tensor:
    probabilities = logits.softmax(-1)
    chosen = probabilities.topk(k).indices
    share = torch.nn.functional.one_hot(chosen, logits.shape[1]).float().sum(1).mean(0)
    return logits.shape[1] * (share * probabilities.mean(0)).sum()


@pytest.mark.parametrize(("tied", "normalise"), VARIANTS)
class TestAgainstTransformers:
    def test_every_gradient_is_autograds_to_1e_4(self, tied: bool, normalise: bool) -> None:
        arch = small_architecture(tied=tied, normalise=normalise)
        model = Model.random(arch)
        tokens, targets = random_batch(arch, length=70)  # more than one block of queries
        theirs = transformers_model(model.by_name(), arch)

        loss, grads, _ = training_step(model, tokens, targets, balance=BALANCE)

        their_total, router_logits = their_loss(theirs, tokens, targets)
        for logits in router_logits:
            balance = balance_of_layer(logits, arch.experts_per_token)
            their_total = their_total + BALANCE * balance
        their_total.backward()
        expected = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
        found = distances(in_their_names(grads.by_name(), arch), expected)
        assert loss == pytest.approx(their_total.item(), rel=1e-5)
        assert max(found.values()) < 1e-4, found

    def test_the_balance_loss_is_theirs_where_they_count_one_layer(
        self, tied: bool, normalise: bool
    ) -> None:
        arch = small_architecture(tied=tied, normalise=normalise, layers=1)
        model = Model.random(arch)
        tokens, _ = random_batch(arch)
        theirs = transformers_model(model.by_name(), arch)
        ids = torch.tensor(tokens, dtype=torch.long)
        out = theirs(input_ids=ids, labels=ids, output_router_logits=True)
        out.loss.backward()
        targets = np.full_like(tokens, -1)
        targets[:, :-1] = tokens[:, 1:]

        loss, grads, _ = training_step(model, tokens, targets, balance=BALANCE)

        expected = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
        found = distances(in_their_names(grads.by_name(), arch), expected)
        assert loss == pytest.approx(out.loss.item(), rel=1e-5)
        assert max(found.values()) < 1e-4, found


def test_gradients_of_a_yarn_model_are_autograds() -> None:
    said = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
    config = {"rope_scaling": said, "max_position_embeddings": 512}
    arch = replace(small_architecture(), rope=read_rope_settings(config, "config.json"))
    model = Model.random(arch)
    tokens, targets = random_batch(arch, length=70)
    theirs = transformers_model(model.by_name(), arch, **said)

    loss, grads, _ = training_step(model, tokens, targets, balance=0.0)

    their_total, _ = their_loss(theirs, tokens, targets)
    their_total.backward()
    expected = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    found = distances(in_their_names(grads.by_name(), arch), expected)
    assert loss == pytest.approx(their_total.item(), rel=1e-5)
    assert max(found.values()) < 1e-4, found


@pytest.mark.long
@pytest.mark.parametrize(("tied", "normalise"), VARIANTS)
def test_every_gradient_is_the_slope_of_the_loss_in_float64(tied: bool, normalise: bool) -> None:
    arch = small_architecture(tied=tied, normalise=normalise)
    model = Model.random(arch, dtype=np.float64)
    tokens, targets = random_batch(arch)
    _, grads, _ = training_step(model, tokens, targets, balance=BALANCE)
    slopes = grads.by_name()
    rng = np.random.default_rng(5)
    step = 1e-6
    for parameters in (model.dense, *model.owners):
        for name in parameters:
            view = parameters[name]
            kept = view.copy()
            direction = rng.standard_normal(view.shape)
            losses = []
            for side in (step, -step):
                view[:] = kept + side * direction
                losses.append(training_step(model, tokens, targets, balance=BALANCE)[0])
            view[:] = kept

            by_difference = (losses[0] - losses[1]) / (2 * step)

            assert by_difference == pytest.approx(
                float((slopes[name] * direction).sum()), rel=1e-5, abs=1e-8
            ), name


class TestMixedPrecision:
    @pytest.mark.parametrize(("tied", "normalise"), VARIANTS)
    def test_gradients_are_autograds_with_the_same_roundings(
        self, tied: bool, normalise: bool
    ) -> None:
        # Sums in another order land on the other side of a rounding now and then, a step of 2^-8
        # in one of many operands: far less than what the roundings do together (see below).
        arch = small_architecture(tied=tied, normalise=normalise)
        model = Model.random(arch)
        tokens, targets = random_batch(arch)

        loss, grads, _ = training_step(
            model, tokens, targets, precision=Precision.BF16, balance=BALANCE
        )

        expected, slopes = loss_and_gradients(
            model.by_name(), arch, tokens, targets, product=rounded_product, balance=BALANCE
        )
        found = distances(grads.by_name(), slopes)
        assert loss == pytest.approx(expected, rel=1e-4)
        assert max(found.values()) < 2e-3, found

    def test_roundings_move_a_gradient_by_a_percent_or_so_and_not_by_nothing(self) -> None:
        # A rounding moves an operand by at most 2^-9, 0.2 %, and some twenty lie between a weight
        # and the loss; all experts are taken, so that no token changes its choice.
        arch = small_architecture(experts_per_token=6)
        model = Model.random(arch)
        tokens, targets = random_batch(arch)

        exact = training_step(model, tokens, targets, balance=BALANCE)[1].by_name()
        rounded = training_step(model, tokens, targets, precision=Precision.BF16, balance=BALANCE)[
            1
        ].by_name()

        found = distances(rounded, exact)
        assert max(found.values()) < 0.04, found
        assert min(found.values()) > 0.0005, found


class TestOrder:
    def test_a_later_token_does_not_reach_an_earlier_one(self) -> None:
        arch = small_architecture()
        model = Model.random(arch)
        tokens, targets = random_batch(arch, length=70)
        changed = tokens.copy()
        changed[1, 40:] = (tokens[1, 40:] + 1) % arch.vocab

        before = training_step(model, tokens, targets)[2].reshape(*tokens.shape, -1)
        after = training_step(model, changed, targets)[2].reshape(*tokens.shape, -1)

        earlier = np.ones(tokens.shape, dtype=bool)
        earlier[1, 40:] = False
        np.testing.assert_allclose(after[earlier], before[earlier], rtol=1e-5, atol=1e-5)
        assert (np.abs(after[1, 40:] - before[1, 40:]).max(axis=1) > 1e-3).all()

    def test_a_token_after_the_last_target_has_no_gradient(self) -> None:
        arch = small_architecture()
        model = Model.random(arch)
        tokens = np.array([[3, 4, 5, 6]], dtype=np.int32)
        targets = np.array([[4, 5, -1, -1]], dtype=np.int32)

        slope = training_step(model, tokens, targets)[1].by_name()["embedding"]

        assert np.abs(slope[[3, 4]]).min(axis=1).max() > 0
        assert (slope[[5, 6, 7]] == 0).all()

    def test_sequences_in_another_order_give_the_same_gradients(self) -> None:
        arch = small_architecture()
        model = Model.random(arch)
        tokens, targets = random_batch(arch, sequences=4)
        order = [2, 0, 3, 1]

        loss, grads, _ = training_step(model, tokens, targets, balance=BALANCE)
        again, moved, _ = training_step(model, tokens[order], targets[order], balance=BALANCE)

        assert again == pytest.approx(loss, rel=1e-6)
        assert max(distances(moved.by_name(), grads.by_name()).values()) < 1e-5


class TestSpread:
    @pytest.mark.parametrize("precision", Precision)
    @pytest.mark.parametrize("owners", [2, 3, 6])
    def test_experts_over_several_owners_give_the_same_bits(
        self, owners: int, precision: Precision
    ) -> None:
        arch = small_architecture()
        model = Model.random(arch)
        tokens, targets = random_batch(arch)

        loss, whole, _ = training_step(model, tokens, targets, precision=precision, balance=BALANCE)
        again, spread, _ = training_step(
            model.spread(owners), tokens, targets, precision=precision, balance=BALANCE
        )

        assert again == loss
        for name, slope in whole.by_name().items():
            assert (spread.by_name()[name] == slope).all(), name

    def test_gradients_of_parts_of_a_batch_add_up_to_those_of_the_whole(self) -> None:
        arch = small_architecture()
        model = Model.random(arch)
        tokens, targets = random_batch(arch, sequences=4)

        whole = training_step(model, tokens, targets)[1].by_name()
        parts = [
            training_step(model, tokens[part], targets[part])[1].by_name()
            for part in (slice(0, 2), slice(2, 4))
        ]

        halves = {name: (parts[0][name] + parts[1][name]) / 2 for name in whole}
        assert max(distances(halves, whole).values()) < 1e-5

    @pytest.mark.parametrize("tied", [False, True])
    def test_a_second_batch_is_added_to_the_gradients_of_the_first(self, tied: bool) -> None:
        arch = small_architecture(tied=tied)
        model = Model.random(arch)
        tokens, targets = random_batch(arch, sequences=4)
        halves = [(tokens[part], targets[part]) for part in (slice(0, 2), slice(2, 4))]
        alone = [training_step(model, *half, balance=BALANCE)[1].by_name() for half in halves]

        both = model.zeros()
        for half in halves:
            training_step(model, *half, balance=BALANCE, grads=both)

        for name, slope in both.by_name().items():
            expected = alone[0][name] + alone[1][name]
            np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=1e-6, err_msg=name)

    @pytest.mark.parametrize("precision", Precision)
    def test_the_same_batch_twice_gives_the_same_bits(self, precision: Precision) -> None:
        arch = small_architecture()
        tokens, targets = random_batch(arch)

        first, again = (
            training_step(Model.random(arch), tokens, targets, precision=precision, balance=0.1)
            for _ in range(2)
        )

        assert first[0] == again[0]
        for name, slope in first[1].by_name().items():
            assert (again[1].by_name()[name] == slope).all(), name


def test_an_embedding_row_gets_the_sum_over_its_tokens() -> None:
    model = Model.random(small_architecture())
    grads = model.zeros()
    tokens = np.array([7, 3, 7], dtype=np.int32)
    grad = np.arange(60, dtype=np.float32).reshape(3, 20)

    embed_backward(model.dense, grads.dense, tokens, grad)
    embed_backward(model.dense, grads.dense, tokens[1:2], grad[1:2])

    slope = grads.dense["embedding"]
    assert (slope[7] == grad[0] + grad[2]).all()
    assert (slope[3] == 2 * grad[1]).all()
    assert np.count_nonzero(slope.any(axis=1)) == 2
    assert (embed(model.dense, tokens, Precision.FP32) == model.dense["embedding"][tokens]).all()


@pytest.mark.long
@pytest.mark.parametrize("precision", Precision)
def test_a_batch_is_learned_by_heart(precision: Precision) -> None:
    arch = small_architecture()
    model = Model.random(arch)
    tokens, targets = random_batch(arch)
    parts = (model.dense, *model.owners)
    optimizers = [AdamW(part.layout, AdamWSettings(weight_decay=0.0)) for part in parts]

    losses = []
    for _ in range(60):
        loss, grads, _ = training_step(model, tokens, targets, precision=precision)
        losses.append(loss)
        slopes = (grads.dense, *grads.owners)
        for optimizer, part, slope in zip(optimizers, parts, slopes, strict=True):
            optimizer.step(part, slope, 0.02)

    assert losses[0] > 3.0
    assert losses[-1] < 0.05
