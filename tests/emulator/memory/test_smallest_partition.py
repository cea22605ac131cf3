from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import HbmExhausted
from emulator.memory.chip_contents import HbmTerms
from emulator.memory.hbm_layout import as_flags, lay_out, smallest_partition
from emulator.memory.model_memory import ModelMemory
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.figure import Figure
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec
from emulator.specs.tensor_group import TensorGroup, TensorSplit
from emulator.units import GB

TERMS = HbmTerms(activation_bytes=0, collective_bytes=0)


def of_trays(trays: int) -> SystemSpec:
    """The UltraServer with two racks of fewer trays."""

    def figure(value: int) -> Figure:
        return Figure(value=value, unit="count", source="a test")

    return replace(TRN3_NL72X2, trays_per_rack=figure(trays), chips=figure(trays * 8), name="small")


def model(*groups: TensorGroup, experts: int = 0, heads: int = 4, kv_heads: int = 4) -> ModelMemory:
    return ModelMemory(
        name="m",
        groups=groups,
        heads=heads,
        kv_heads=kv_heads,
        cached_heads=kv_heads,
        head_groups=kv_heads,
        kv_bytes_per_token=4_000,
        experts=experts,
    )


def experts_of(copy_bytes: int, experts: int) -> ModelMemory:
    group = TensorGroup(name="experts", split=TensorSplit.EXPERT, copy_bytes=copy_bytes)
    return model(group, experts=experts)


def found(memory: ModelMemory, asked: Partition, *, redundant_slots: int = 0) -> str:
    partition = smallest_partition(
        memory, TRN3_NL72X2, asked, redundant_slots=redundant_slots, terms=TERMS
    )
    return "nothing" if partition is None else as_flags(partition)


def test_experts_need_a_chip_for_each_that_a_chip_can_hold_by_hand() -> None:
    one_chip = Partition(chips=1, ep=1)
    # 153 GB of a chip are left by microcode: one expert of 100 GB each, three of 50 GB.
    assert found(experts_of(100 * GB, 12), one_chip) == "--chips 12 --tp 1 --ep 12 --lnc 2"
    assert found(experts_of(50 * GB, 12), one_chip) == "--chips 4 --tp 1 --ep 4 --lnc 2"
    # 5 experts, three on a chip: two chips, the second of which holds two.
    assert found(experts_of(50 * GB, 5), one_chip) == "--chips 2 --tp 1 --ep 2 --lnc 2"


def test_a_redundant_slot_on_each_chip_needs_more_of_them() -> None:
    asked = Partition(chips=1, ep=1)
    found_with_one = found(experts_of(50 * GB, 12), asked, redundant_slots=1)

    assert found_with_one == "--chips 6 --tp 1 --ep 6 --lnc 2"


def test_attention_too_large_for_a_chip_asks_for_tensor_parallelism() -> None:
    heads = TensorGroup(name="attention", split=TensorSplit.HEADS, copy_bytes=300 * GB, kv_bytes=GB)

    # 37.5 GB a head: one on each of a chip's four cores.
    memory = model(heads, heads=8, kv_heads=8)
    assert found(memory, Partition(chips=8, ep=8)) == "--chips 2 --tp 2 --ep 1 --lnc 2"


def test_experts_are_spread_as_widely_as_the_chips_allow() -> None:
    heads = TensorGroup(name="attention", split=TensorSplit.HEADS, copy_bytes=300 * GB)
    tiny = TensorGroup(name="experts", split=TensorSplit.EXPERT, copy_bytes=4)
    memory = model(heads, tiny, heads=8, kv_heads=8, experts=2)

    assert found(memory, Partition(chips=1, ep=1)) == "--chips 2 --tp 2 --ep 2 --lnc 2"


def test_another_lnc_is_advised_when_it_saves_chips_but_never_one_that_is_not_released() -> None:
    # 2 heads of 60 GB: LNC=1 puts two copies of each into a chip, which is too much for any tp.
    heads = TensorGroup(name="attention", split=TensorSplit.HEADS, copy_bytes=60 * GB)
    memory = model(heads, heads=2, kv_heads=2)
    assert found(memory, Partition(chips=1, ep=1, lnc=1)) == "--chips 1 --tp 1 --ep 1 --lnc 2"

    # 120 GB: only LNC=8 holds it on one chip.
    larger = model(replace(heads, copy_bytes=120 * GB), heads=2, kv_heads=2)
    assert found(larger, Partition(chips=1, ep=1, lnc=2)) == "nothing"
    assert found(larger, Partition(chips=1, ep=1, lnc=8)) == "--chips 1 --tp 1 --ep 1 --lnc 8"


def test_spares_and_the_first_chip_are_kept_and_leave_fewer_chips_to_use() -> None:
    memory = experts_of(100 * GB, 12)
    asked = Partition(chips=1, ep=1, first_chip=120, spares=12)
    partition = smallest_partition(memory, TRN3_NL72X2, asked, redundant_slots=0, terms=TERMS)
    assert partition == Partition(chips=12, ep=12, first_chip=120, spares=12)

    one_spare_more = replace(asked, spares=13)
    assert found(memory, one_spare_more) == "nothing"


def first_that_lays_out(memory: ModelMemory, system: SystemSpec, asked: Partition) -> str:
    """Try every partition in the stated order and really lay the model out."""
    released = [asked.lnc, *(lnc for lnc in (1, 2) if lnc != asked.lnc)]
    for chips in range(1, system.chips.count + 1):
        sizes = [size for size in range(1, chips + 1) if chips % size == 0]
        for lnc, tp, ep in product(released, sizes, sizes[::-1]):
            if memory.head_groups % tp or ep > max(1, memory.experts):
                continue
            partition = Partition(chips=chips, tp=tp, ep=ep, lnc=lnc)
            try:
                lay_out(memory, system, partition, slots=-(-memory.experts // ep), terms=TERMS)
            except HbmExhausted:
                continue
            return as_flags(partition)
    return "nothing"


@pytest.mark.long
@given(
    expert_bytes=st.integers(1, 80 * GB),
    experts=st.integers(0, 20),
    head_bytes=st.integers(0, 300 * GB),
    row_bytes=st.integers(0, 160 * GB),
    lnc=st.sampled_from([1, 2]),
)
def test_it_is_the_first_partition_on_which_the_model_really_lies(
    expert_bytes: int, experts: int, head_bytes: int, row_bytes: int, lnc: int
) -> None:
    memory = model(
        TensorGroup(name="experts", split=TensorSplit.EXPERT, copy_bytes=expert_bytes),
        TensorGroup(name="attention", split=TensorSplit.HEADS, copy_bytes=head_bytes),
        TensorGroup(name="embedding", split=TensorSplit.WHOLE, copy_bytes=row_bytes),
        experts=experts,
    )
    system, asked = of_trays(1), Partition(chips=1, ep=1, lnc=lnc)
    partition = smallest_partition(memory, system, asked, redundant_slots=0, terms=TERMS)

    expected = first_that_lays_out(memory, system, asked)
    assert ("nothing" if partition is None else as_flags(partition)) == expected
