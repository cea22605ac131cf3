from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.checkpoint import read_architecture
from emulator.compute.paged_kv import CHUNK_TOKENS, PagedKv
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
    assert keys.shape == (arch.layers, heads, key_dim, blocks, 16)
    assert values.shape == (arch.layers, heads, blocks, 16 * value_dim)


def test_a_token_is_found_where_its_slot_says() -> None:
    kv = pool(blocks=4, block_tokens=64)
    keys, values = tokens(1)

    kv.write(1, np.array([2 * 64 + 5]), keys, values)

    read_keys, read_values = kv.read(1, np.array([[3, 2]]))  # one item, one chunk of two blocks
    assert read_keys.shape == (KV_HEADS, 1, 1, HEAD_DIM, CHUNK_TOKENS)
    assert read_values.shape == (KV_HEADS, 1, 1, CHUNK_TOKENS, HEAD_DIM)
    assert (read_keys[:, 0, 0, :, 64 + 5] == keys[0]).all()
    assert (read_values[:, 0, 0, 64 + 5] == values[0]).all()
    assert np.count_nonzero(read_keys) == np.count_nonzero(read_values) == KV_HEADS * HEAD_DIM
    assert not kv.read(0, np.array([[3, 2]]))[0].any(), "the other layer is untouched"


@pytest.mark.parametrize("block_tokens", [1, 2, 4, 8, 16, 32, 64, 128])
@given(data=st.data())
def test_contexts_read_back_in_the_order_of_their_tables(
    block_tokens: int, data: st.DataObject
) -> None:
    blocks = max(8, 3 * CHUNK_TOKENS // block_tokens)
    kv = pool(blocks=blocks, block_tokens=block_tokens)
    seed = data.draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    keys, values = tokens(blocks * block_tokens, seed)
    slots = rng.permutation(blocks * block_tokens)  # written in any order
    kv.write(0, slots, keys[slots], values[slots])
    chunks = data.draw(st.integers(1, 3))
    items = data.draw(st.integers(1, 3))
    tables = rng.integers(0, blocks, size=(items, chunks * kv.blocks_per_chunk))

    read_keys, read_values = kv.read(0, tables)

    for item in range(items):
        wanted = (tables[item][:, None] * block_tokens + np.arange(block_tokens)).ravel()
        by_token = read_keys[:, item].transpose(1, 3, 0, 2).reshape(-1, KV_HEADS, HEAD_DIM)
        assert (by_token == keys[wanted]).all()
        by_token = read_values[:, item].transpose(1, 2, 0, 3).reshape(-1, KV_HEADS, HEAD_DIM)
        assert (by_token == values[wanted]).all()


def test_a_copied_block_holds_every_layer_of_its_source_and_nothing_else_moves() -> None:
    kv = pool(blocks=3, block_tokens=64)
    for layer in range(LAYERS):
        kv.write(layer, np.arange(3 * 64), *tokens(3 * 64, seed=layer))
    before = [[kv.read(layer, np.array([[b, b]])) for b in range(3)] for layer in range(LAYERS)]

    kv.copy_block(1, 2)

    for layer in range(LAYERS):
        for block, source in ((0, 0), (1, 1), (2, 1)):
            keys, values = kv.read(layer, np.array([[block, block]]))
            assert (keys == before[layer][source][0]).all()
            assert (values == before[layer][source][1]).all()


def test_what_is_read_is_a_copy() -> None:
    kv = pool(blocks=2, block_tokens=128)
    keys, values = kv.read(0, np.array([[1]]))

    kv.write(0, np.arange(128, 256), *tokens(128))

    assert not keys.any()
    assert not values.any()


@pytest.mark.parametrize("block_tokens", [3, 48, 256])
def test_a_block_that_does_not_fill_chunks_evenly_is_refused(block_tokens: int) -> None:
    with pytest.raises(AssertionError, match=str(block_tokens)):
        pool(blocks=2, block_tokens=block_tokens)
