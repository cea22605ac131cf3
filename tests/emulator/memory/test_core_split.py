import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.memory.chip_contents import (
    HeadsOnCore,
    group_bytes_on_core,
    heads_on_core,
    kv_bytes_on_core,
)
from emulator.specs.attention_split import AttentionSplit
from emulator.specs.tensor_group import TensorGroup, TensorSplit


def reference_heads_on_core(*, heads: int, kv_heads: int, tp: int, cores: int) -> HeadsOnCore:
    """Deal the heads out one by one and look at the fullest core."""
    chip_heads = -(-heads // tp)
    core_heads = -(-chip_heads // cores)
    met: dict[tuple[int, int], set[int]] = {}
    for head in range(heads):
        chip, on_chip = divmod(head, chip_heads)
        core = on_chip // core_heads
        met.setdefault((chip, core), set()).add(head // (heads // kv_heads))
    return HeadsOnCore(query_heads=core_heads, kv_heads=max(len(each) for each in met.values()))


def on_core(group: TensorGroup, *, tp: int, cores: int, slots: int = 0) -> int:
    """Bytes on each core for a model of 32 query heads and 4 key/value heads."""
    return group_bytes_on_core(group, heads=32, kv_heads=4, tp=tp, cores=cores, slots=slots)


@pytest.mark.parametrize(
    ("tp", "cores", "query_heads", "kv_heads"),
    [
        (1, 1, 32, 4),  # LNC=8: all on one core
        (1, 4, 8, 1),  # LNC=2: one key/value head each
        (1, 8, 4, 1),  # LNC=1: each key/value head on two cores
        (4, 8, 1, 1),  # 32 cores: each key/value head on eight
        (4, 1, 8, 1),
    ],
)
def test_32_heads_with_4_kv_heads_by_hand(
    tp: int, cores: int, query_heads: int, kv_heads: int
) -> None:
    split = heads_on_core(heads=32, kv_heads=4, tp=tp, cores=cores)

    assert split == HeadsOnCore(query_heads=query_heads, kv_heads=kv_heads)


def test_query_heads_that_do_not_divide_are_padded_up() -> None:
    # 20 heads on 8 cores: 3 each (the last one has padding); 4 query heads share a KV head, so
    # the heads 3, 4 and 5 of the second core meet two of them.
    assert heads_on_core(heads=20, kv_heads=5, tp=1, cores=8) == HeadsOnCore(
        query_heads=3, kv_heads=2
    )


def test_more_cores_than_heads_leave_each_core_with_one() -> None:
    assert heads_on_core(heads=2, kv_heads=1, tp=1, cores=8) == HeadsOnCore(
        query_heads=1, kv_heads=1
    )


def test_the_split_equals_dealing_heads_out_one_by_one_in_every_small_case() -> None:
    for kv_heads in (1, 2, 3, 4):
        for queries_per_kv in (1, 2, 3, 5):
            for tp in (1, 2, 3):
                for cores in (1, 4, 8):
                    case = {
                        "heads": kv_heads * queries_per_kv,
                        "kv_heads": kv_heads,
                        "tp": tp,
                        "cores": cores,
                    }
                    assert heads_on_core(**case) == reference_heads_on_core(**case), case


def test_an_attention_group_by_hand() -> None:
    # 32 query heads of 10 bytes and 4 key/value heads of 20 bytes.
    group = TensorGroup(name="attention", split=TensorSplit.HEADS, copy_bytes=400, kv_bytes=80)

    assert on_core(group, tp=1, cores=1) == 400
    assert on_core(group, tp=1, cores=4) == 8 * 10 + 20
    assert on_core(group, tp=1, cores=8) == 4 * 10 + 20  # 480 on the chip: KV weights twice
    assert on_core(group, tp=2, cores=8) == 2 * 10 + 20


def test_columns_are_divided_over_all_cores_of_a_rank_and_rows_over_those_of_each_chip() -> None:
    columns = TensorGroup(name="ffn", split=TensorSplit.COLUMNS, copy_bytes=1_000)
    whole = TensorGroup(name="embedding", split=TensorSplit.WHOLE, copy_bytes=1_000)

    assert on_core(columns, tp=4, cores=8) == 32  # 31.25, up to whole bytes
    assert on_core(whole, tp=4, cores=8) == 125


def test_experts_lie_on_their_chip_and_their_columns_on_its_cores() -> None:
    experts = TensorGroup(name="experts", split=TensorSplit.EXPERT, copy_bytes=100, layers=3)

    assert on_core(experts, tp=1, cores=8, slots=2) == 2 * 3 * 13  # 12.5 up, each expert
    assert on_core(experts, tp=4, cores=8, slots=2) == 2 * 3 * 13  # tp does not divide experts
    assert on_core(experts, tp=1, cores=8, slots=0) == 0


def test_a_token_of_a_shared_latent_is_kept_whole_on_every_core() -> None:
    assert kv_bytes(128, 1, tp=2, split=AttentionSplit.HEADS) == 70_272


@pytest.mark.parametrize("split", [AttentionSplit.BATCH, AttentionSplit.SEQUENCE])
def test_a_cache_divided_by_batch_or_sequence_lies_once_on_a_chip(split: AttentionSplit) -> None:
    assert kv_bytes(128, 1, tp=2, split=split) == 70_272 / 4
    # two chips have 4 of 8 heads each; by heads, 4 cores have one each: the same
    assert kv_bytes(64, 8, tp=2, split=split) == kv_bytes(64, 8, tp=2, split=AttentionSplit.HEADS)
    # eight chips have one of 8 heads each: by heads all of their 4 cores have it
    assert kv_bytes(64, 8, tp=8, split=AttentionSplit.HEADS) == 70_272 / 8
    assert kv_bytes(64, 8, tp=8, split=split) == 70_272 / 32


def kv_bytes(heads: int, kv_heads: int, *, tp: int, split: AttentionSplit) -> int:
    return kv_bytes_on_core(
        copy_bytes=70_272, heads=heads, kv_heads=kv_heads, tp=tp, cores=4, split=split
    )


@given(
    group=st.builds(
        TensorGroup,
        name=st.just("g"),
        split=st.sampled_from(TensorSplit),
        copy_bytes=st.integers(1_000, 10**6),
        kv_bytes=st.integers(0, 1_000),
        layers=st.integers(1, 4),
    ),
    kv_heads=st.integers(1, 16),
    queries_per_kv=st.integers(1, 8),
    tp=st.integers(1, 8),
    cores=st.sampled_from([1, 4, 8]),
    slots=st.integers(0, 4),
)
def test_the_cores_of_a_rank_hold_every_byte_at_least_once(
    group: TensorGroup, kv_heads: int, queries_per_kv: int, tp: int, cores: int, slots: int
) -> None:
    each = group_bytes_on_core(
        group,
        heads=kv_heads * queries_per_kv,
        kv_heads=kv_heads,
        tp=tp,
        cores=cores,
        slots=slots,
    )

    match group.split:
        case TensorSplit.HEADS | TensorSplit.COLUMNS:
            assert tp * cores * each >= group.copy_bytes
        case TensorSplit.WHOLE:
            assert group.copy_bytes <= cores * each < group.copy_bytes + cores
        case TensorSplit.EXPERT:
            assert cores * each >= slots * group.layers * group.copy_bytes
