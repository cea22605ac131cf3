from collections.abc import Iterable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from emulator.errors import HbmExhausted
from emulator.memory.hbm_allocator import HbmAllocator, taken_level
from emulator.memory.lnc import CoreMap, core_map
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.hbm_usage import HbmOwner, HbmUse
from emulator.units import GIB

STACK = 36 * GIB
KV = HbmOwner(use=HbmUse.KV)
ATTENTION = HbmOwner(use=HbmUse.WEIGHTS, name="attention")
EXPERTS = HbmOwner(use=HbmUse.WEIGHTS, name="experts")
OWNERS = (KV, ATTENTION, EXPERTS)


def allocator(lnc: int) -> HbmAllocator:
    return HbmAllocator(core_map(TRAINIUM3, lnc))


def by_stack(chip: HbmAllocator) -> list[int]:
    return [stack.free_bytes for stack in chip.usage()]


def test_a_core_of_lnc_2_has_its_own_stack_to_the_last_byte() -> None:
    chip = allocator(2)
    chip.allocate(KV, core=1, wanted_bytes=STACK)

    with pytest.raises(HbmExhausted, match="kv wants 1 bytes, 0 are free"):
        chip.allocate(KV, core=1, wanted_bytes=1)
    assert by_stack(chip) == [STACK, 0, STACK, STACK]
    chip.check()


def test_a_noisy_neighbour_takes_the_stack_of_its_sibling_under_lnc_1() -> None:
    chip = allocator(1)
    chip.allocate(ATTENTION, core=4, wanted_bytes=STACK - 10)

    with pytest.raises(HbmExhausted, match="kv wants 11 bytes, 10 are free"):
        chip.allocate(KV, core=5, wanted_bytes=11)
    chip.allocate(KV, core=5, wanted_bytes=10)
    assert by_stack(chip) == [STACK, STACK, 0, STACK]


def test_the_core_of_lnc_8_fills_four_stacks_level() -> None:
    chip = allocator(8)
    chip.allocate(ATTENTION, core=0, wanted_bytes=4 * STACK - 6)

    assert by_stack(chip) == [1, 1, 2, 2]
    chip.allocate(KV, core=0, wanted_bytes=6)
    assert by_stack(chip) == [0, 0, 0, 0]


def test_an_allocation_that_does_not_fit_leaves_everything_as_it_was() -> None:
    chip = allocator(2)
    chip.allocate_on_cores(ATTENTION, [5, 6, 7, 8])
    before = chip.usage()

    for fail in (
        lambda: chip.allocate(KV, core=0, wanted_bytes=STACK),
        lambda: chip.allocate_on_cores(KV, [1, 1, 1, STACK]),
        lambda: chip.resize_on_cores(ATTENTION, [1, 1, 1, STACK + 1]),
    ):
        with pytest.raises(HbmExhausted):
            fail()
        assert chip.usage() == before
        chip.check()


def test_resize_counts_what_the_owner_already_holds_as_free_to_it() -> None:
    chip = allocator(2)
    chip.allocate(KV, core=0, wanted_bytes=STACK)

    chip.resize_on_cores(KV, [STACK, 0, 0, 0])
    chip.resize_on_cores(KV, [3, 0, 0, 0])
    chip.resize_on_cores(EXPERTS, [4, 0, 0, 0])  # held nothing before

    assert (chip.held_bytes(KV), chip.held_bytes(EXPERTS)) == (3, 4)
    assert by_stack(chip)[0] == STACK - 7


def test_free_gives_back_one_core_or_all_of_an_owner_and_says_how_much() -> None:
    chip = allocator(2)
    chip.allocate_on_cores(KV, [1, 2, 3, 4])
    chip.allocate(KV, core=0, wanted_bytes=10)
    chip.allocate(ATTENTION, core=0, wanted_bytes=100)

    assert chip.free(KV, core=0) == 11
    assert chip.free(KV) == 9
    assert chip.free(KV) == 0
    assert chip.held_bytes(ATTENTION) == 100
    assert chip.free_bytes == 4 * STACK - 100


def test_a_copy_changes_alone() -> None:
    chip = allocator(2)
    chip.allocate(KV, core=0, wanted_bytes=7)
    twin = chip.copy(device=5)
    twin.allocate(KV, core=0, wanted_bytes=1)
    twin.free(KV, core=3)

    assert (chip.held_bytes(KV), twin.held_bytes(KV)) == (7, 8)
    assert (chip.device, twin.device) == (0, 5)


def test_usage_says_who_holds_what_stack_by_stack() -> None:
    chip = allocator(1)
    chip.allocate(KV, core=1, wanted_bytes=2)
    chip.allocate(EXPERTS, core=0, wanted_bytes=5)
    chip.allocate(KV, core=0, wanted_bytes=3)

    first, second = chip.usage()[:2]
    assert [(each.core, str(each.owner), each.held_bytes) for each in chip.held()[0]] == [
        (0, "kv", 3),
        (0, "weights/experts", 5),
        (1, "kv", 2),
    ]
    assert list(first.owner_bytes.items()) == [("kv", 5), ("weights/experts", 5)]
    assert (first.free_bytes, second.owner_bytes) == (STACK - 10, {})


def slow_taken_level(free: list[int], wanted_bytes: int) -> list[int]:
    """Take byte by byte from a stack that has most left, the last of several equal ones."""
    left = list(free)
    for _ in range(wanted_bytes):
        left[max(range(len(left)), key=lambda stack: (left[stack], -stack))] -= 1
    return [before - after for before, after in zip(free, left, strict=True)]


def test_level_filling_ends_as_level_as_taking_byte_by_byte_in_every_small_case() -> None:
    for free in product(range(4), repeat=4):
        for wanted in range(sum(free) + 1):
            taken = taken_level(free, wanted)
            assert sum(taken) == wanted
            assert all(0 <= count <= had for count, had in zip(taken, free, strict=True))
            slow = slow_taken_level(list(free), wanted)
            assert left_after(free, taken) == left_after(free, slow)


def left_after(free: Iterable[int], taken: Iterable[int]) -> list[int]:
    return sorted(had - count for had, count in zip(free, taken, strict=True))


@given(
    free=st.lists(st.integers(0, 2**40), min_size=1, max_size=6),
    share=st.fractions(0, 1),
)
def test_level_filling_takes_what_is_wanted_and_no_more_than_there_is(
    free: list[int], share: float
) -> None:
    wanted = int(sum(free) * share)
    taken = taken_level(free, wanted)

    assert sum(taken) == wanted
    assert all(0 <= count <= had for count, had in zip(taken, free, strict=True))


class AnyHistory(RuleBasedStateMachine):
    """The allocator beside a dictionary of what each owner holds on each core."""

    lnc = 1

    def __init__(self) -> None:
        super().__init__()
        self.cores: CoreMap = core_map(TRAINIUM3, self.lnc)
        self.chip = HbmAllocator(self.cores)
        self.held: dict[tuple[HbmOwner, int], int] = {}

    def room(self, core: int) -> int:
        sharing = (core, *self.cores.cores[core].shares_with)
        return self.cores.region_bytes - sum(
            count for (_, other), count in self.held.items() if other in sharing
        )

    @rule(owner=st.sampled_from(OWNERS), core=st.integers(0, 7), wanted=st.integers(0, 2 * STACK))
    def allocate(self, owner: HbmOwner, core: int, wanted: int) -> None:
        core %= len(self.cores.cores)
        if wanted <= self.room(core):
            self.chip.allocate(owner, core=core, wanted_bytes=wanted)
            self.held[owner, core] = self.held.get((owner, core), 0) + wanted
        else:
            with pytest.raises(HbmExhausted):
                self.chip.allocate(owner, core=core, wanted_bytes=wanted)

    @rule(owner=st.sampled_from(OWNERS), wanted=st.integers(0, STACK))
    def resize_on_cores(self, owner: HbmOwner, wanted: int) -> None:
        others = {key: count for key, count in self.held.items() if key[0] != owner}
        after = others | {(owner, core.core): wanted for core in self.cores.cores}
        before, self.held = self.held, after
        count = len(self.cores.cores)
        if min(self.room(core) for core in range(count)) >= 0:
            self.chip.resize_on_cores(owner, [wanted] * count)
        else:
            self.held = before
            with pytest.raises(HbmExhausted):
                self.chip.resize_on_cores(owner, [wanted] * count)

    @rule(owner=st.sampled_from(OWNERS), core=st.integers(0, 7))
    def free(self, owner: HbmOwner, core: int) -> None:
        core %= len(self.cores.cores)
        assert self.chip.free(owner, core=core) == self.held.pop((owner, core), 0)

    @invariant()
    def every_byte_has_one_owner_or_is_free(self) -> None:
        self.chip.check()
        for (owner, core), count in self.held.items():
            assert self.chip.held_bytes(owner, core=core) == count
        held = sum(self.held.values())
        assert self.chip.free_bytes + held == TRAINIUM3.hbm_bytes


class AnyHistoryLnc2(AnyHistory):
    lnc = 2


class AnyHistoryLnc8(AnyHistory):
    lnc = 8


TestAnyHistoryLnc1 = AnyHistory.TestCase
TestAnyHistoryLnc2 = AnyHistoryLnc2.TestCase
TestAnyHistoryLnc8 = AnyHistoryLnc8.TestCase
for machine in (TestAnyHistoryLnc1, TestAnyHistoryLnc2, TestAnyHistoryLnc8):
    machine.settings = settings(stateful_step_count=25)
