from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.checkpoint import read_architecture
from emulator.compute.paged_kv import PagedKv
from emulator.data import SMALL_MOE_DIR
from emulator.specs.latent_attention import LatentAttention

LAYERS, KV_HEADS, HEAD_DIM = 2, 3, 4
LATENT = LatentAttention(query_rank=9, kv_rank=12, nope_dim=6, rope_dim=4, value_dim=7)


def pool(*, blocks: int, block_tokens: int) -> PagedKv:
    return PagedKv(
        layers=LAYERS,
        kv_heads=KV_HEADS,
        key_dim=HEAD_DIM,
        value_dim=HEAD_DIM,
        blocks=blocks,
        block_tokens=block_tokens,
    )


def found(kv: PagedKv, layer: int, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values at `slots`, one at a time: [tokens, heads, dim]."""
    keys, values = kv.layer(layer)
    places = [divmod(slot, kv.block_tokens) for slot in slots.tolist()]
    by_token = values.reshape(*values.shape[:2], kv.block_tokens, -1)
    return (
        np.array([keys[block, :, :, offset] for block, offset in places]),
        np.array([by_token[block, :, offset] for block, offset in places]),
    )


def tokens(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    keys, values = np.random.default_rng(seed).standard_normal((2, count, KV_HEADS, HEAD_DIM))
    return keys.astype(np.float32), values.astype(np.float32)


@pytest.mark.parametrize(
    ("latent", "groups", "expected"),
    [
        (None, 3, (3, 8, 5, 8)),  # heads, key's and blocks' numbers, value's
        (None, 0, (1, 8, 1, 8)),
        (LATENT, 2, (1, 12 + 4, 5, 12)),
        (LATENT, 0, (1, 12 + 4, 1, 12)),
    ],
)
def test_a_chips_pool_is_as_wide_as_its_head_groups_or_as_the_latent(
    latent: LatentAttention | None, groups: int, expected: tuple[int, int, int, int]
) -> None:
    arch = replace(read_architecture(SMALL_MOE_DIR), head_dim=8, latent=latent)
    heads, key_dim, blocks, value_dim = expected

    kv = PagedKv.of(arch, groups=groups, blocks=5, block_tokens=16)

    keys, values = kv.read_blocks(range(kv.blocks))
    assert keys.shape == (arch.layers, blocks, heads, key_dim, 16)
    assert values.shape == (arch.layers, blocks, heads, 16 * value_dim)


def test_a_token_is_found_where_its_slot_says() -> None:
    kv = pool(blocks=4, block_tokens=64)
    keys, values = tokens(1)

    kv.write(1, np.array([2 * 64 + 5]), keys, values)

    read_keys, read_values = found(kv, 1, np.array([2 * 64 + 5]))
    assert (read_keys == keys).all()
    assert (read_values == values).all()
    assert all(np.count_nonzero(pool) == KV_HEADS * HEAD_DIM for pool in kv.layer(1))
    assert not any(pool.any() for pool in kv.layer(0)), "the other layer is untouched"


@pytest.mark.parametrize("block_tokens", [1, 2, 4, 8, 16, 32, 64, 128])
@given(data=st.data())
def test_tokens_are_found_in_whatever_order_they_were_written(
    block_tokens: int, data: st.DataObject
) -> None:
    blocks = 300 // block_tokens + 1
    kv = pool(blocks=blocks, block_tokens=block_tokens)
    seed = data.draw(st.integers(0, 2**32))
    keys, values = tokens(blocks * block_tokens, seed)
    slots = np.random.default_rng(seed).permutation(blocks * block_tokens)

    kv.write(0, slots, keys[slots], values[slots])

    read_keys, read_values = found(kv, 0, np.arange(blocks * block_tokens))
    assert (read_keys == keys).all()
    assert (read_values == values).all()


def test_a_copied_block_holds_every_layer_of_its_source_and_nothing_else_moves() -> None:
    kv = pool(blocks=3, block_tokens=64)
    for layer in range(LAYERS):
        kv.write(layer, np.arange(3 * 64), *tokens(3 * 64, seed=layer))
    before = kv.read_blocks(range(3))

    kv.copy_block(1, 2)

    for pool_before, pool_after in zip(before, kv.read_blocks(range(3)), strict=True):
        assert (pool_after == pool_before[:, [0, 1, 1]]).all()


def test_blocks_that_are_read_out_and_written_elsewhere_are_the_same() -> None:
    sender, receiver = pool(blocks=4, block_tokens=16), pool(blocks=6, block_tokens=16)
    for layer in range(LAYERS):
        sender.write(layer, np.arange(64), *tokens(64, seed=layer))

    receiver.write_blocks([5, 1], *sender.read_blocks([0, 3]))

    for layer in range(LAYERS):
        there = found(receiver, layer, np.array([5 * 16 + 3, 16 + 9]))
        here = found(sender, layer, np.array([3, 3 * 16 + 9]))
        assert all((one == other).all() for one, other in zip(there, here, strict=True))


@pytest.mark.parametrize("block_tokens", [3, 48])
def test_a_block_that_is_no_power_of_two_is_refused(block_tokens: int) -> None:
    with pytest.raises(AssertionError, match=str(block_tokens)):
        pool(blocks=2, block_tokens=block_tokens)


def test_a_table_with_a_block_that_is_not_there_is_refused() -> None:
    kv = pool(blocks=4, block_tokens=16)
    kv.check(np.array([[3, 0], [1, 2]]))

    for wrong in (4, -1):
        with pytest.raises(IndexError, match=rf"block {wrong}: the pool has 4 blocks"):
            kv.check(np.array([[3, 0], [1, wrong]]))
