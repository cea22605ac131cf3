"""Each law once by hand, with round constants."""

import numpy as np
import pytest

from emulator.timing.laws.collective_law import CollectiveLaw
from emulator.timing.laws.decode_attention_law import DecodeAttentionLaw
from emulator.timing.laws.expert_law import ExpertLaw
from emulator.timing.laws.near_memory import kept_share, near_ns, overlapped_ns
from emulator.timing.laws.prefill_attention_law import PrefillAttentionLaw
from emulator.timing.laws.product_law import ProductLaw
from emulator.timing.laws.silicon import Silicon
from tests.emulator.timing.laws.law_cases import shape_of

ROUND = Silicon(
    cores=4.0,
    flops=4_000.0,
    exponentials=10.0,
    hbm_bytes=100.0,
    near_bytes=1e6,
    link_bytes=10.0,
)
PRODUCT = ProductLaw(
    start_ns=100.0,
    quantise_ns=1_000.0,
    tensor_share=0.5,
    memory_share=0.5,
    edge=0.25,
    wave=1.0,
    split_ns=1e9,
    streams=1.0,
    overlap=1.0,
    copies=1.0,
    near_bytes=1.0,
)


def test_a_product_of_eight_tiles_on_four_cores_takes_two_waves() -> None:
    shape = shape_of("GEMM", rows=128, outputs=2048, inputs=1000, element_bytes=1, quantised=0)

    (found,) = PRODUCT.duration_ns(shape_of_one(shape), ROUND)

    # 128 x 256 outputs a tile, of 500 flops/ns a core, a quarter of 128/2 x (1/128 + 1/256) edges.
    tile_ns = 2 * 128 * 256 * 1000 / 500 * (1 + 0.25 * 0.75)
    # Weights at half of HBM's rate; rows and outputs from near memory, 4 bytes/ns.
    loads_ns = 1000 * 2048 / 50 + 128 * (1000 + 2 * 2048) / 4
    assert found == pytest.approx(100 + 2 * tile_ns + loads_ns)


def test_quantised_rows_are_read_and_written_before_the_product() -> None:
    plain = shape_of_one(shape_of("GEMM", quantised=0))
    quantised = shape_of_one(shape_of("GEMM", quantised=1))

    more = PRODUCT.duration_ns(quantised, ROUND) - PRODUCT.duration_ns(plain, ROUND)

    assert more == pytest.approx(1_000 + 16 * 2048 * 3 / 4)


def test_a_decode_of_one_long_context_is_divided_over_the_cores() -> None:
    law = DecodeAttentionLaw(
        start_ns=100.0,
        memory_share=0.5,
        tensor_share=0.5,
        query_rows=8.0,
        chunk_tokens=100.0,
        reread=0.0,
        wave_ns=7.0,
        combine_ns=40.0,
        overlap=1.0,
        copies=1.0,
        near_bytes=1.0,
    )
    shape = shape_of_one(
        shape_of(
            "GQA decode",
            requests=1,
            context_tokens=200,
            heads=4,
            kv_heads=1,
            token_bytes=10,
            width=5,
        )
    )

    (found,) = law.duration_ns(shape, ROUND)

    # Two chunks of 100 tokens on two of four cores: half of every rate, and parts to combine.
    loads_ns = 200 * 10 / (100 * 0.5 * 0.5)
    products_ns = 2 * 8 * 5 * 200 / (4_000 * 0.5 * 0.5)
    assert found == pytest.approx(100 + 40 / 2 + 4 * 5 * 2 / 100 + loads_ns + products_ns)


def test_a_prefill_waits_for_products_exponentials_and_its_longest_row() -> None:
    law = PrefillAttentionLaw(
        start_ns=100.0,
        tensor_share=0.5,
        softmax_share=1.0,
        diagonal_tokens=2.0,
        tail=0.0,
        tile_ns=8.0,
        memory_share=0.5,
        near_bytes=1.0,
    )
    shape = shape_of_one(
        shape_of(
            "GQA prefill",
            prompts=1,
            tokens=4,
            heads=2,
            kv_heads=1,
            width=10,
            cache_bytes=1,
            window=2,
        )
    )

    (found,) = law.duration_ns(shape, ROUND)

    scores = 1 + 2 + 2 + 2  # a window of two
    each_ns = np.hypot(2 * 10 / 2_000, 1 / 10)
    rows_bytes = 4 * 10 * (2 * 2 + 3 * 1)
    moving_ns = rows_bytes / 4 / 0.5
    computing_ns = each_ns * 2 * (scores + 4)
    assert found == pytest.approx(100 + np.hypot(computing_ns, moving_ns) + 2 / 4 * 8)


def test_experts_stream_the_weights_of_those_that_have_a_row() -> None:
    law = ExpertLaw(
        start_ns=100.0,
        expert_ns=1.0,
        skew=0.5,
        unrouted=0.5,
        tensor_share=0.5,
        memory_share=0.5,
        edge=0.0,
        rows_share=1.0,
        near_bytes=1.0,
        copies=1.0,
        overlap=1.0,
    )
    shape = shape_of_one(
        shape_of("MoE", tokens=8, chosen=2, experts=16, held=4, divided=4, hidden=10, columns=128)
    )

    (found,) = law.duration_ns(shape, ROUND)

    distinct = 4 * (1 - np.exp(-1.0))  # four pairs on four experts
    weights_ns = distinct * 3 * 10 * 128 / 50
    products_ns = distinct * 2 * 16 * 3 * 10 * 128 / 2_000  # two rows an expert, at the least 16
    touched = 4 + 0.5 * (16 - 4)
    rows_ns = (2 * 8 * 10 * 2 + 3 * touched * (10 + 128) * 2) / 4
    assert found == pytest.approx(100 + 16 + weights_ns + products_ns + rows_ns)
    skewed = shape_of_one(shape_of("MoE", tokens=8, chosen=2, held=4, divided=4, skewed=1))
    assert law.pairs(skewed) == pytest.approx(8)  # 16 / sqrt(4)


def test_a_small_all_reduce_goes_in_one_step_and_a_large_one_in_two() -> None:
    law = CollectiveLaw(
        start_ns=100.0, doubling_ns=10.0, flag_share=0.5, link_share=1.0, synchronise_ns=50.0
    )
    shape = shape_of("collectives", chips=4, payload_bytes=np.array([10.0, 10_000.0]))

    found = law.duration_ns(shape, ROUND)

    assert found.tolist() == pytest.approx([120 + 3 * 10 / 5, 120 + 50 + 1.5 * 10_000 / 10])


def test_near_memory_keeps_what_fits_and_spills_the_rest() -> None:
    sizes = np.array([0.0, 1e6, 1e9])

    assert kept_share(sizes, ROUND, copies=1.0).tolist() == pytest.approx([1, 0.5, 0], abs=1e-9)
    assert near_ns(np.array([4e6]), ROUND, core_bytes=1.0) == pytest.approx(1e6 + 3e6 / 100)


def test_engines_overlap_between_taking_turns_and_the_longest_alone() -> None:
    three, four = np.array([3.0, 0.0]), np.array([4.0, 0.0])

    assert overlapped_ns(1.0, three, four).tolist() == [7, 0]
    assert overlapped_ns(2.0, three, four).tolist() == pytest.approx([5, 0])
    assert overlapped_ns(50.0, three, four).tolist() == pytest.approx([4, 0])


def shape_of_one(shape: object) -> object:
    """The same with columns of one kernel."""
    names = shape.__dataclass_fields__  # type: ignore[attr-defined]
    return type(shape)(**{name: np.atleast_1d(getattr(shape, name)) for name in names})
