import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError, HbmExhausted
from emulator.memory.chip_contents import KV_OWNER, HbmTerms
from emulator.memory.hbm_layout import HbmLayout, lay_out
from emulator.memory.model_memory import ModelMemory
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.hbm_usage import HbmOwner, HbmUse, use_of
from emulator.specs.partition import Partition
from emulator.specs.tensor_group import TensorGroup, TensorSplit
from emulator.units import GB, GIB, MB

# What a stack has beside the microcode of its two physical cores.
STACK_LEFT = 36 * GIB - 2 * 96 * MB
NO_RESERVE = HbmTerms(activation_bytes=0, collective_bytes=0)
LNC_SIZES = (1, 2, 8)


def group(
    split: TensorSplit, copy_bytes: int, *, kv_bytes: int = 0, layers: int = 1
) -> TensorGroup:
    return TensorGroup(
        name=split.value, split=split, copy_bytes=copy_bytes, kv_bytes=kv_bytes, layers=layers
    )


def model(*groups: TensorGroup, heads: int = 8, kv_heads: int = 8, experts: int = 0) -> ModelMemory:
    return ModelMemory(
        name="m",
        groups=groups,
        heads=heads,
        kv_heads=kv_heads,
        cached_heads=kv_heads,
        head_groups=kv_heads,
        kv_bytes_per_token=1_000 * kv_heads,
        experts=experts,
    )


def placed(
    memory: ModelMemory,
    *,
    lnc: int,
    chips: int = 1,
    tp: int = 1,
    slots: int | list[int] = 0,
    terms: HbmTerms = NO_RESERVE,
) -> HbmLayout:
    partition = Partition(chips=chips, tp=tp, ep=chips, lnc=lnc)
    return lay_out(memory, TRN3_NL72X2, partition, slots=slots, terms=terms)


def fits(memory: ModelMemory, *, lnc: int, terms: HbmTerms = NO_RESERVE) -> bool:
    try:
        placed(memory, lnc=lnc, terms=terms)
    except HbmExhausted:
        return False
    return True


def attention_of(copy_bytes: int) -> ModelMemory:
    """Two heads with their own keys and values; nothing else, and a KV cache of a byte a head."""
    memory = model(
        group(TensorSplit.HEADS, copy_bytes, kv_bytes=copy_bytes // 2), heads=2, kv_heads=2
    )
    return replace(memory, kv_bytes_per_token=2)


def test_the_size_at_which_a_model_no_longer_fits_differs_by_lnc() -> None:
    # A model of B bytes has two heads. LNC=8: one core holds both, B in 4 stacks. LNC=2: 4 cores
    # hold one each, B/2 in each stack. LNC=1: 8 cores hold one each, 2 x B/2 in each stack. One
    # token of KV is one byte for each head that a core holds: 2, 1 and 2 in a region.
    largest = {8: 4 * STACK_LEFT - 2, 2: 2 * (STACK_LEFT - 1), 1: STACK_LEFT - 2}
    for lnc, copy_bytes in largest.items():
        in_fours = copy_bytes // 4 * 4  # so that the heads' keys and values are whole bytes
        assert fits(attention_of(in_fours), lnc=lnc), lnc
        assert not fits(attention_of(in_fours + 4), lnc=lnc), lnc

    assert [fits(attention_of(100 * GB), lnc=lnc) for lnc in LNC_SIZES] == [False, False, True]
    assert [fits(attention_of(50 * GB), lnc=lnc) for lnc in LNC_SIZES] == [False, True, True]
    assert [fits(attention_of(30 * GB), lnc=lnc) for lnc in LNC_SIZES] == [True, True, True]


def test_repeated_key_value_heads_leave_room_for_fewer_tokens() -> None:
    # 4 key/value heads of 1,000 bytes a token, 10 GB of weights in rows: 2.5 GB in each stack.
    memory = model(group(TensorSplit.WHOLE, 10 * GB), heads=32, kv_heads=4)
    stack = STACK_LEFT - 10 * GB // 4

    tokens = {lnc: placed(memory, lnc=lnc).kv_tokens_per_rank for lnc in LNC_SIZES}

    assert tokens[8] == (4 * stack // 4_000,)  # each head once
    assert tokens[2] == (stack // 1_000,)  # each head once, each in its own stack
    assert tokens[1] == (stack // 2_000,)  # each head on two cores, which share a stack


def test_a_shared_latent_is_repeated_on_every_core_and_chip() -> None:
    memory = replace(
        model(group(TensorSplit.WHOLE, 4 * GB), heads=128, kv_heads=1),
        head_groups=128,
        kv_bytes_per_token=70_272,
    )
    stack = STACK_LEFT - GB

    for lnc, held_in_a_stack in ((1, 2.0), (2, 1.0), (8, 0.25)):
        (tokens,) = placed(memory, lnc=lnc).kv_tokens_per_rank
        assert tokens == int(stack // (70_272 * held_in_a_stack))
        (two_chips,) = placed(memory, lnc=lnc, chips=2, tp=2).kv_tokens_per_rank
        assert two_chips == tokens


def test_every_byte_of_a_small_deployment_by_hand() -> None:
    # LNC=2 on two chips of one rank: 8 cores for 8 query heads of 100 bytes and 4 key/value heads
    # of 200; 800 bytes of columns; 12 bytes of rows; 3 layers of experts of 40 bytes.
    memory = model(
        group(TensorSplit.HEADS, 1_600, kv_bytes=800),
        group(TensorSplit.COLUMNS, 800),
        group(TensorSplit.WHOLE, 12),
        group(TensorSplit.EXPERT, 40, layers=3),
        heads=8,
        kv_heads=4,
        experts=3,
    )
    terms = HbmTerms(activation_bytes=400, collective_bytes=40)
    layout = placed(memory, lnc=2, chips=2, tp=2, slots=[2, 1], terms=terms)
    layout.take_kv([5])

    (first, second) = layout.usage()
    held = first[3].owner_bytes
    assert held == {
        "microcode": 192_000_000,
        "activations": 100,
        "collectives": 10,
        "weights/heads": 100 + 200,  # one query head, one key/value head on two cores
        "weights/columns": 100,
        "weights/whole": 3,
        "weights/expert": 2 * 3 * 10,
        "kv": 5 * 1_000,
    }
    assert second[0].owner_bytes == held | {"weights/expert": 3 * 10}
    assert layout.kv_tokens_per_rank == ((36 * GIB - sum(held.values()) + 5_000) // 1_000,)
    layout.check()


def test_the_hbm_maps_of_the_three_lncs_differ_for_one_model() -> None:
    memory = model(group(TensorSplit.HEADS, 8_000, kv_bytes=4_000), heads=4, kv_heads=4)
    maps = {}
    for lnc in LNC_SIZES:
        (allocator,) = placed(memory, lnc=lnc).allocators
        maps[lnc] = [
            (each.core, each.held_bytes)
            for each in allocator.held()[1]
            if each.owner.use is HbmUse.WEIGHTS
        ]

    assert maps == {
        1: [(2, 2_000), (3, 2_000)],  # two siblings, each with one of four heads
        2: [(1, 2_000)],
        8: [(0, 2_000)],  # a quarter of the core's 8,000
    }


def test_what_utilization_leaves_is_spare_for_lost_experts() -> None:
    # 100 experts of 2 layers, 4 bytes each: a byte on each core of LNC=2.
    memory = model(group(TensorSplit.EXPERT, 4, layers=2), experts=100)
    terms = replace(NO_RESERVE, utilization=0.75)
    layout = placed(memory, lnc=2, slots=100, terms=terms)
    (tokens,) = layout.kv_tokens_per_rank
    assert tokens == (27 * GIB - 192 * MB - 200) // 2_000  # 2 of the 8 key/value heads on a core

    layout.take_kv(layout.kv_tokens_per_rank)
    stack_free = 36 * GIB - 192 * MB - 200 - tokens * 2_000
    assert layout.allocators[0].free_bytes == 4 * stack_free
    assert layout.spare_expert_copies(0) == stack_free
    assert layout.spare_slots(0) == stack_free // 2

    layout.hold_expert_copies(0, 200 + stack_free)
    assert layout.allocators[0].free_bytes == 0
    with pytest.raises(HbmExhausted):
        layout.hold_expert_copies(0, 201 + stack_free)
    assert layout.allocators[0].free_bytes == 0
    layout.check()


def test_experts_reloaded_under_lnc_1_need_room_on_both_siblings() -> None:
    # An expert is a byte on each of 8 cores, so 2 bytes of a stack.
    memory = model(group(TensorSplit.EXPERT, 8), experts=2)
    layout = placed(memory, lnc=1, slots=1)
    stack_free = STACK_LEFT - 2

    assert layout.spare_expert_copies(0) == stack_free // 2
    layout.hold_expert_copies(0, 1 + stack_free // 2)
    assert layout.allocators[0].free_bytes == 0


def test_experts_of_which_a_part_does_not_fit_are_not_held_at_all() -> None:
    names = ("gate", "down")
    parts = [replace(group(TensorSplit.EXPERT, 4), name=name) for name in names]
    layout = placed(model(*parts, experts=2), lnc=2, slots=1)
    with pytest.raises(HbmExhausted, match="weights/down"):
        layout.hold_expert_copies(0, STACK_LEFT - 10)

    owners = [HbmOwner(use=HbmUse.WEIGHTS, name=name) for name in names]
    assert [layout.allocators[0].held_bytes(owner) for owner in owners] == [4, 4]


def test_a_dense_model_has_no_spare_slots() -> None:
    layout = placed(model(group(TensorSplit.COLUMNS, 800)), lnc=2)

    assert (layout.spare_expert_copies(0), layout.spare_slots(0)) == (0, 0)


def test_a_rank_has_the_tokens_of_its_fullest_chip() -> None:
    # A slot more is 10 GB, 2.5 GB of each stack.
    memory = model(group(TensorSplit.EXPERT, 10 * GB), experts=6)
    layout = placed(memory, lnc=2, chips=4, tp=2, slots=[2, 1, 1, 1])

    roomy = (STACK_LEFT - 10 * GB // 4) // 1_000  # 8 key/value heads over the 8 cores of a rank
    assert layout.kv_tokens_per_rank == ((STACK_LEFT - 20 * GB // 4) // 1_000, roomy)
    with pytest.raises(HbmExhausted, match="kv wants"):
        layout.take_kv([roomy, roomy])
    with pytest.raises(HbmExhausted, match="kv wants"):
        layout.take_kv([1, roomy + 1])  # the first rank's chips had room
    assert {allocator.held_bytes(KV_OWNER) for allocator in layout.allocators} == {0}

    layout.take_kv(layout.kv_tokens_per_rank)
    layout.take_kv([7, 3])  # instead of what it held, not beside it
    assert [allocator.held_bytes(KV_OWNER) for allocator in layout.allocators] == [
        4 * 7_000,
        4 * 7_000,
        4 * 3_000,
        4 * 3_000,
    ]


def test_chips_are_numbered_in_the_system_and_changed_one_by_one() -> None:
    memory = model(group(TensorSplit.EXPERT, 8), experts=6)
    partition = Partition(chips=3, ep=3, first_chip=8)
    layout = lay_out(memory, TRN3_NL72X2, partition, slots=2)
    layout.hold_expert_copies(1, 5)

    owner = HbmOwner(use=HbmUse.WEIGHTS, name="expert")
    assert [allocator.device for allocator in layout.allocators] == [8, 9, 10]
    assert [allocator.held_bytes(owner) for allocator in layout.allocators] == [16, 40, 16]


def test_what_does_not_fit_is_refused_with_the_table_and_what_would_fit() -> None:
    # 12 experts of 100 GB: each chip holds one, beside 4 GB of reserves and the microcode.
    memory = model(group(TensorSplit.EXPERT, 100 * GB), experts=12)
    with pytest.raises(HbmExhausted) as caught:
        placed(memory, lnc=2, chips=6, slots=2, terms=HbmTerms())

    lines = str(caught.value).splitlines()
    # 2 experts on 4 cores are 50 GB on each.
    left = STACK_LEFT - GB
    assert lines[0] == (
        f"HBM exhausted: weights/expert of m wants 50,000,000,000 bytes, {left:,} are free"
    )
    assert "LNC size is 2. Neuron Cores using this HBM: NC 0" in lines[1]
    assert "on ND 0:NC 0" in lines[2]
    assert lines[-1] == "smallest that fits: --chips 12 --tp 1 --ep 12 --lnc 2"
    assert any(line.startswith("  \\_activations") for line in lines)


def test_the_fullest_chip_is_the_one_that_a_refusal_shows() -> None:
    memory = model(group(TensorSplit.EXPERT, 100 * GB), experts=4)
    partition = Partition(chips=2, ep=2, first_chip=4)
    with pytest.raises(HbmExhausted, match=r"wants 75,000,000,000 bytes[^$]*on ND 5:NC 0"):
        lay_out(memory, TRN3_NL72X2, partition, slots=[2, 3])


def test_advice_counts_the_redundant_slots_that_were_asked_for() -> None:
    # 12 experts of 50 GB, three on a chip, or two and a redundant one.
    memory = model(group(TensorSplit.EXPERT, 50 * GB), experts=12)
    for slots, chips in ((6, 4), (7, 6)):
        with pytest.raises(HbmExhausted, match=f"--chips {chips} --tp 1 --ep {chips} --lnc 2$"):
            placed(memory, lnc=2, chips=2, slots=slots)


def test_weights_that_fit_without_room_for_the_least_pool_are_refused_as_kv() -> None:
    memory = model(group(TensorSplit.WHOLE, 4 * 30 * GB))
    left = STACK_LEFT - 30 * GB  # 2,000 bytes a token on each core
    terms = replace(NO_RESERVE, least_kv_tokens=left // 2_000)
    placed(memory, lnc=2, terms=terms)

    wanted = (left // 2_000 + 1) * 2_000
    more = replace(terms, least_kv_tokens=left // 2_000 + 1)
    with pytest.raises(
        HbmExhausted, match=rf"kv of m wants {wanted:,} bytes, {left:,} are free"
    ) as caught:
        placed(memory, lnc=2, terms=more)
    # Two chips as one rank share the heads: half the KV on each.
    assert str(caught.value).endswith("--chips 2 --tp 2 --ep 1 --lnc 2")


def test_a_model_that_no_partition_holds_is_refused_in_so_many_words_and_quickly() -> None:
    memory = model(group(TensorSplit.WHOLE, 200 * GB), experts=256)
    started = time.process_time()
    with pytest.raises(HbmExhausted, match=r"no partition of the 144 chips of trn3-nl72x2"):
        placed(memory, lnc=1, chips=144, slots=2)

    assert time.process_time() - started < 0.2


@pytest.mark.parametrize("utilization", [0.0, -0.1, 1.01, float("nan")])
def test_a_share_of_hbm_outside_0_to_1_is_refused_by_name(utilization: float) -> None:
    with pytest.raises(ConfigError, match=r"^gpu_memory_utilization="):
        HbmTerms(utilization=utilization)


@given(
    lnc=st.sampled_from(LNC_SIZES),
    tp=st.sampled_from([1, 2, 4]),
    heads_bytes=st.integers(0, 60 * GB),
    rows_bytes=st.integers(0, 40 * GB),
    expert_bytes=st.integers(0, GB),
    slots=st.lists(st.integers(0, 8), min_size=4, max_size=4),
    utilization=st.floats(0.3, 1.0),
)
def test_the_pool_fits_to_the_last_token_within_its_share_and_bytes_are_conserved(
    lnc: int,
    tp: int,
    heads_bytes: int,
    rows_bytes: int,
    expert_bytes: int,
    slots: list[int],
    utilization: float,
) -> None:
    memory = model(
        group(TensorSplit.HEADS, heads_bytes, kv_bytes=heads_bytes // 3),
        group(TensorSplit.WHOLE, rows_bytes),
        group(TensorSplit.EXPERT, expert_bytes, layers=3),
        experts=8,
        heads=16,
    )
    terms = HbmTerms(utilization=utilization)
    try:
        layout = placed(memory, lnc=lnc, chips=4, tp=tp, slots=slots, terms=terms)
    except HbmExhausted:
        return
    layout.take_kv(layout.kv_tokens_per_rank)
    layout.check()
    for stacks in layout.usage():
        held = sum(stack.capacity_bytes - stack.free_bytes for stack in stacks)
        assert held <= 144 * GIB * utilization
    one_more = [tokens + 1 for tokens in layout.kv_tokens_per_rank]
    if utilization == 1.0:
        with pytest.raises(HbmExhausted):
            layout.take_kv(one_more)
        layout.check()


def lent_layout() -> HbmLayout:
    memory = model(group(TensorSplit.HEADS, 8 * MB), group(TensorSplit.EXPERT, 5 * MB), experts=4)
    layout = lay_out(memory, TRN3_NL72X2, Partition(chips=4, ep=4), slots=1)
    layout.take_kv([100] * 4)
    return layout


MASTER = HbmOwner(use=HbmUse.TRAINING, name="master")


def test_a_lent_chip_holds_its_training_state_alone_and_then_what_it_held_before() -> None:
    layout = lent_layout()
    before = layout.usage()
    held = layout.lend_out(2, {MASTER: 40 * GB})

    owners = {use_of(owner) for stack in layout.usage()[2] for owner in stack.owner_bytes}
    assert owners == {HbmUse.MICROCODE, HbmUse.TRAINING}
    assert layout.allocators[2].held_bytes(MASTER) == 40 * GB
    assert layout.usage()[0] == before[0]
    layout.check()
    layout.take_back(2, held)
    assert layout.usage() == before
    layout.check()


def test_a_training_state_that_does_not_fit_is_refused_and_nothing_changes() -> None:
    layout = lent_layout()
    before = layout.usage()
    for lends in (layout.check_lending, layout.lend_out):
        with pytest.raises(HbmExhausted, match="training/master wants"):
            lends(1, {MASTER: 150 * GIB})
        assert layout.usage() == before


def test_asking_whether_a_training_state_fits_changes_nothing_and_says_what_is_left() -> None:
    layout = lent_layout()
    before = layout.usage()

    assert layout.check_lending(1, {MASTER: 40 * GB}) == 4 * STACK_LEFT - 40 * GB
    assert layout.usage() == before
