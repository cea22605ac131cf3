"""The decoder's pieces joined without a chip, held against transformers layer by layer."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeForCausalLM

from emulator.compute.checkpoint import check_weights, load_shard
from emulator.compute.decoder import (
    DecoderLayer,
    OutputHead,
    Routed,
    batch_rotation,
    decoder_layers,
    embed,
)
from emulator.compute.paged_kv import PagedKv
from emulator.compute.rope import Rotation
from emulator.compute.token_batch import Span, TokenBatch, make_token_batch
from emulator.compute.weights import ModelShard
from tests.emulator.chip.random_checkpoints import SHAPES

TOKENS = 150


def whole_model(directory: Path) -> tuple[ModelShard, PagedKv]:
    arch = check_weights(directory)
    kv = PagedKv.of(arch, groups=arch.groups, blocks=16, block_tokens=16)
    return load_shard(directory, arch, [range(arch.experts)] * arch.layers), kv


def routed_layer(
    layer: DecoderLayer, kv: PagedKv, x: np.ndarray, batch: TokenBatch, angles: Rotation
) -> Routed:
    """The layer up to its experts."""
    return layer.route(layer.add_attention(x, layer.attend(kv, x, batch, angles)))


def experts_of(layer: DecoderLayer, routed: Routed, experts: int) -> np.ndarray:
    """The chosen experts' outputs [tokens, k, hidden]."""
    k = routed.chosen.shape[1]
    order = np.argsort(routed.chosen.ravel(), kind="stable")
    counts = np.bincount(routed.chosen.ravel(), minlength=experts)
    out = layer.run_experts(routed.joined.hidden, order // k, counts)
    rows = np.empty_like(out)
    rows[order] = out
    return rows.reshape(-1, k, out.shape[1])


@pytest.mark.long
@pytest.mark.parametrize("name", SHAPES)
def test_every_layer_gives_transformers_hidden_states_and_choice_of_experts(
    name: str, small_checkpoints: Mapping[str, Path]
) -> None:
    directory = small_checkpoints[name]
    shard, kv = whole_model(directory)
    arch = shard.architecture
    token_ids = np.random.default_rng(1).integers(0, arch.vocab, TOKENS).astype(np.int32)
    model = Qwen3MoeForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        expected = model(
            torch.from_numpy(token_ids[None].astype(np.int64)),
            output_hidden_states=True,
            output_router_logits=True,
        )
    batch = make_token_batch(
        [Span(token_ids=token_ids, first_position=0, block_table=range(1, 16))], 16
    )
    angles = batch_rotation(shard, batch)

    x = embed(shard, batch)
    for index, layer in enumerate(decoder_layers(shard)):
        # The reference's last hidden states are after the final norm: compared as logits below.
        np.testing.assert_allclose(x, expected.hidden_states[index][0], atol=1e-4, rtol=1e-4)
        routed = routed_layer(layer, kv, x, batch, angles)
        best = expected.router_logits[index].topk(arch.experts_per_token, dim=-1).indices
        assert routed.chosen.tolist() == best.sort(dim=-1).values.tolist()
        x = layer.combine(routed, experts_of(layer, routed, arch.experts))

    scores = OutputHead(shard).logits(x)
    wanted = expected.logits[0].numpy()
    difference = np.abs(scores - wanted).max(axis=1) / np.abs(wanted).max(axis=1)
    assert scores.shape == (TOKENS, arch.vocab)
    assert difference.max() <= 1e-4


def test_weights_add_to_one_where_the_config_asks_for_it(
    small_checkpoints: Mapping[str, Path],
) -> None:
    sums = {}
    for name in ("wide_heads", "one_kv_head"):
        shard, kv = whole_model(small_checkpoints[name])
        batch = make_token_batch(
            [Span(token_ids=np.arange(9, dtype=np.int32), first_position=0, block_table=[1])], 16
        )
        x = embed(shard, batch)
        angles = batch_rotation(shard, batch)
        routed = routed_layer(decoder_layers(shard)[0], kv, x, batch, angles)
        sums[name] = routed.weights.sum(axis=1)

    np.testing.assert_allclose(sums["wide_heads"], 1.0, rtol=1e-6)
    assert (sums["one_kv_head"] < 0.99).all()
