"""Latent attention in one kernel has the bits of its steps one by one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.arrays import Float32s
from emulator.compute.architecture import Architecture, Routing
from emulator.compute.attention_kernel import Places
from emulator.compute.latent import (
    LATENT_NORM_EPS,
    attend_latent_apart,
    latent_arrays,
    latent_scoring,
)
from emulator.compute.layer_kernel import attend, attend_latent
from emulator.compute.norms import rms_norm
from emulator.compute.paged_kv import PagedKv
from emulator.compute.rope import Rotation, rotation
from emulator.compute.rope_settings import RopeSettings, YarnScaling
from emulator.compute.tiled_matmul import grouped_matmul, tiled_matmul
from emulator.compute.token_batch import Span, TokenBatch, make_token_batch
from emulator.compute.weights import LatentWeights
from emulator.formats.product_formats import FP32_PRODUCTS
from emulator.specs.latent_attention import LatentAttention
from tests.emulator.compute.rotate_reference import rotate

BLOCK_TOKENS, BLOCKS, EPS = 16, 40, 1e-5
YARN = YarnScaling(
    factor=4.0,
    original_context_tokens=64,
    beta_fast=32.0,
    beta_slow=1.0,
    attention_factor=1.1,
    truncate=True,
)


class Case:
    """A layer's latent attention with random weights."""

    def __init__(self, heads: int, groups: int, latent: LatentAttention, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.groups, hidden = groups, 48
        self.rope = RopeSettings(theta=10_000.0, scaling=YARN if seed % 2 else None)
        self.arch = Architecture(
            family="DeepseekV3ForCausalLM",
            layers=1,
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=latent.value_dim,
            latent=latent,
            score_scale=latent.query_width_per_head**-0.5,
            windows=(0,),
            routing=Routing(normalise=True),
            vocab=8,
            max_context_tokens=512,
            tied_embeddings=False,
            norm_eps=EPS,
            rope=self.rope,
        )

        def drawn(*shape: int) -> Float32s:
            return (rng.standard_normal(shape) / 4).astype(np.float32)

        group_heads = heads // groups
        self.input_norm = 1 + drawn(hidden)
        self.weights = LatentWeights(
            query_down=drawn(hidden, latent.query_rank),
            query_norm=1 + drawn(latent.query_rank),
            query_up=drawn(groups, latent.query_rank, group_heads * latent.query_width_per_head),
            kv_down=drawn(hidden, latent.cached_width),
            kv_norm=1 + drawn(latent.kv_rank),
            key_up=drawn(heads, latent.nope_dim, latent.kv_rank),
            value_up=drawn(heads, latent.kv_rank, latent.value_dim),
            output=drawn(groups, group_heads * latent.value_dim, hidden),
        )
        self.x = drawn(400, hidden)

    def kv(self) -> PagedKv:
        return PagedKv.of(self.arch, groups=self.groups, blocks=BLOCKS, block_tokens=BLOCK_TOKENS)

    def places(self, batch: TokenBatch) -> tuple[Rotation, Places]:
        assert self.arch.latent is not None
        angles = rotation(batch.spans.positions, self.arch.latent.rope_dim, self.rope)
        return angles, Places(batch.slots, angles.cos[:, 0], angles.sin[:, 0])

    def in_one(self, x: Float32s, kv: PagedKv, batch: TokenBatch) -> Float32s:
        arrays = latent_arrays(self.weights, self.input_norm, EPS)
        scoring = latent_scoring(self.arch)
        return attend_latent(x, kv.layer(0), arrays, self.places(batch)[1], batch.spans, scoring)

    def apart(self, x: Float32s, kv: PagedKv, batch: TokenBatch) -> Float32s:
        normed = rms_norm(x, self.input_norm, EPS)
        places, spans = self.places(batch)[1], batch.spans
        return attend_latent_apart(
            self.arch, self.weights, kv, 0, normed, places, spans, FP32_PRODUCTS
        )

    def by_numpy(self, x: Float32s, kv: PagedKv, batch: TokenBatch) -> Float32s:
        """All but products, norms and attention itself in numpy."""
        latent, weights = self.arch.latent, self.weights
        assert latent is not None
        angles, _ = self.places(batch)
        normed = rms_norm(x, self.input_norm, EPS)
        down = tiled_matmul(normed, weights.query_down)
        query = grouped_matmul(
            rms_norm(down, weights.query_norm, LATENT_NORM_EPS), weights.query_up
        )
        query = query.reshape(self.groups, len(x), -1, latent.query_width_per_head)
        by_head = query.transpose(0, 2, 1, 3).reshape(-1, len(x), latent.query_width_per_head)
        shared = tiled_matmul(normed, weights.kv_down)
        cached = rms_norm(shared[:, : latent.kv_rank], weights.kv_norm, LATENT_NORM_EPS)
        key = rotate(shared[:, None, latent.kv_rank :], angles)
        keys = np.concatenate([cached[:, None], key], axis=2)
        kv.write(0, batch.slots, keys, cached[:, None])
        folded = grouped_matmul(by_head[..., : latent.nope_dim], weights.key_up).transpose(1, 0, 2)
        turned = rotate(by_head[..., latent.nope_dim :].transpose(1, 0, 2), angles)
        queries = np.ascontiguousarray(np.concatenate([folded, turned], axis=2))
        mixed = attend(queries, *kv.layer(0), batch.spans, latent_scoring(self.arch))
        values = grouped_matmul(mixed.transpose(1, 0, 2), weights.value_up)
        by_group = values.reshape(self.groups, -1, len(x), latent.value_dim).transpose(0, 2, 1, 3)
        return grouped_matmul(by_group.reshape(self.groups, len(x), -1), weights.output)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    groups = draw(st.sampled_from([1, 2, 3]))
    latent = LatentAttention(
        query_rank=draw(st.sampled_from([5, 24])),
        kv_rank=draw(st.sampled_from([1, 16, 33, 520])),
        nope_dim=draw(st.sampled_from([1, 8, 20])),
        rope_dim=draw(st.sampled_from([2, 6, 16])),
        value_dim=draw(st.sampled_from([1, 8, 30])),
    )
    heads = groups * draw(st.integers(1, 3))
    return Case(heads, groups, latent, draw(st.integers(0, 3)))


def batch_of(first: int, *lengths: int) -> TokenBatch:
    """Spans from position `first` on, each with blocks of its own."""
    return make_token_batch(
        [
            Span(
                token_ids=np.zeros(length, dtype=np.int32),
                first_position=first,
                block_table=list(range(1 + 10 * place, 11 + 10 * place)),
            )
            for place, length in enumerate(lengths)
        ],
        BLOCK_TOKENS,
    )


@pytest.mark.long
@given(case=cases(), lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_one_kernel_has_the_bits_of_the_steps_one_by_one(case: Case, lengths: list[int]) -> None:
    caches = [case.kv() for _ in range(3)]
    for first, spans in ((0, lengths), (max(lengths), [1] * len(lengths))):
        batch = batch_of(first, *spans)
        x = case.x[: sum(spans)]
        one, other, reference = (
            compute(x, kv, batch)
            for compute, kv in zip((case.in_one, case.apart, case.by_numpy), caches, strict=True)
        )
        assert one.tobytes() == reference.tobytes()
        assert other.tobytes() == reference.tobytes()
        for kv in caches[:2]:
            for found, expected in zip(kv.layer(0), caches[2].layer(0), strict=True):
                assert found.tobytes() == expected.tobytes()


def test_a_token_has_the_same_bits_alone_and_heads_on_whatever_chip() -> None:
    latent = LatentAttention(query_rank=24, kv_rank=32, nope_dim=16, rope_dim=8, value_dim=16)
    case = Case(4, 2, latent, 1)
    whole = case.in_one(case.x[:20], case.kv(), batch_of(0, 20))
    kv = case.kv()
    parts = [case.in_one(case.x[place : place + 1], kv, batch_of(place, 1)) for place in range(20)]
    assert np.concatenate(parts, axis=1).tobytes() == whole.tobytes()

    half: dict[str, Any] = {
        name: getattr(case.weights, name)[1:] for name in ("query_up", "output")
    } | {name: getattr(case.weights, name)[2:] for name in ("key_up", "value_up")}
    case.weights, case.groups = replace(case.weights, **half), 1
    second = case.in_one(case.x[:20], case.kv(), batch_of(0, 20))
    assert second[0].tobytes() == whole[1].tobytes()
