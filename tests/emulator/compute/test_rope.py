import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import (
    Qwen3MoeRotaryEmbedding,
    apply_rotary_pos_emb,
)

from emulator.compute.rope import rotation
from emulator.compute.rope_settings import RopeSettings
from tests.emulator.compute.rotate_reference import rotate

PLAIN = RopeSettings(theta=10_000.0)
MILLION = RopeSettings(theta=1e6)

positions_of_a_context = st.lists(st.integers(0, 131_071), min_size=1, max_size=8)


def test_a_pair_turns_by_its_position_in_radians() -> None:
    x = np.array([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=np.float32)  # [tokens, heads, 2]

    turned = rotate(x, rotation(np.array([1, 2]), head_dim=2, rope=PLAIN))

    expected = [[[math.cos(1), math.sin(1)]], [[-math.sin(2), math.cos(2)]]]
    np.testing.assert_allclose(turned, expected, rtol=1e-6)


def test_the_second_pair_of_four_turns_slower_by_the_root_of_theta() -> None:
    # Element i is paired with i + 2; the second pair's frequency is theta ** (-2 / 4).
    x = np.array([[[0.0, 1.0, 0.0, 0.0]]], dtype=np.float32)

    turned = rotate(x, rotation(np.array([50]), head_dim=4, rope=RopeSettings(theta=2_500.0)))

    np.testing.assert_allclose(turned, [[[0, math.cos(1), 0, math.sin(1)]]], atol=1e-6)


def test_the_first_token_is_not_turned() -> None:
    x = np.random.default_rng(0).standard_normal((1, 4, 16)).astype(np.float32)

    assert (rotate(x, rotation(np.array([0]), 16, MILLION)) == x).all()


@pytest.mark.parametrize("theta", [500.0, 10_000.0, 1_000_000.0])
@pytest.mark.parametrize("head_dim", [2, 16, 24, 128])
def test_it_is_transformers_rotation_up_to_the_longest_context(head_dim: int, theta: float) -> None:
    config = Qwen3MoeConfig(
        head_dim=head_dim,
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        max_position_embeddings=131_072,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    positions = np.array([0, 1, 2, 63, 500, 4_095, 40_000, 131_071])
    x = np.random.default_rng(1).standard_normal((8, 2, head_dim)).astype(np.float32)
    by_head = torch.from_numpy(x).transpose(0, 1)[None]  # [1, heads, tokens, head_dim]
    cos, sin = Qwen3MoeRotaryEmbedding(config)(by_head, torch.from_numpy(positions)[None])
    expected = apply_rotary_pos_emb(by_head, by_head, cos, sin)[0][0].transpose(0, 1).numpy()

    turned = rotate(x, rotation(positions, head_dim, RopeSettings(theta=theta)))

    # The very same angles but for a few inverse frequencies, whose last bit may differ; an angle
    # of thousands of turns that were off by rounding alone would be off by a hundredth.
    np.testing.assert_allclose(turned, expected, atol=2e-5)


@given(positions_of_a_context, st.integers(0, 2**32))
def test_turning_keeps_lengths(positions: list[int], seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((len(positions), 2, 16)).astype(np.float32)

    turned = rotate(x, rotation(np.array(positions), 16, PLAIN))

    before, after = np.square(x).sum(axis=-1), np.square(turned).sum(axis=-1)
    np.testing.assert_allclose(after, before, rtol=1e-5)


@given(st.integers(0, 2_000), st.integers(0, 2_000), st.integers(1, 2_000))
def test_a_score_depends_on_the_distance_alone(first: int, second: int, shift: int) -> None:
    query, key = np.random.default_rng(7).standard_normal((2, 1, 1, 16)).astype(np.float32)

    def score(query_at: int, key_at: int) -> float:
        turned = [
            rotate(x, rotation(np.array([at]), 16, PLAIN))
            for x, at in ((query, query_at), (key, key_at))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(first, second) == pytest.approx(score(first + shift, second + shift), abs=0.005)


@given(positions_of_a_context)
def test_a_position_has_the_same_bits_alone_and_among_others(positions: list[int]) -> None:
    together = rotation(np.array(positions), 24, MILLION)

    for row, position in enumerate(positions):
        alone = rotation(np.array([position]), 24, MILLION)
        assert (together.cos[row] == alone.cos[0]).all()
        assert (together.sin[row] == alone.sin[0]).all()


def test_axes_between_tokens_and_a_heads_elements_are_all_heads() -> None:
    x = np.random.default_rng(2).standard_normal((5, 3, 2, 16)).astype(np.float32)
    angles = rotation(np.arange(40, 45), 16, MILLION)

    turned = rotate(x, angles)

    assert (turned.reshape(5, 6, 16) == rotate(x.reshape(5, 6, 16), angles)).all()
