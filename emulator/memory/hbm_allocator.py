"""The HBM allocator of one chip: every byte of every stack, by owner and logical core.

It counts bytes, without addresses, and so without fragmentation.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from emulator.errors import HbmExhausted
from emulator.memory.lnc import CoreMap
from emulator.memory.usage_table import FailedAllocation, failure_report
from emulator.specs.hbm_usage import HbmOwner, HeldBytes, StackUsage


class HbmAllocator:
    """HBM of one chip with logical cores `cores`; `device` is its number in reports.

    A logical core allocates in the stacks that it sees, from the emptiest first, which keeps them
    level, as interleaved addresses do. Every change is whole or not at all.
    """

    def __init__(self, cores: CoreMap, *, device: int = 0) -> None:
        self.cores = cores
        self.device = device
        self._free = [cores.stack_bytes] * cores.stacks
        self._held: dict[tuple[HbmOwner, int], list[int]] = {}  # bytes by stack
        self._usage: tuple[StackUsage, ...] | None = None

    def copy(self, *, device: int) -> Self:
        """The same contents for another chip."""
        twin = type(self)(self.cores, device=device)
        twin._free = list(self._free)
        twin._held = {key: list(by_stack) for key, by_stack in self._held.items()}
        return twin

    def allocate(self, owner: HbmOwner, *, core: int, wanted_bytes: int) -> None:
        """Give `owner` more bytes on `core`; raises HbmExhausted with nothing allocated."""
        assert wanted_bytes >= 0, wanted_bytes
        stacks = self.cores.cores[core].stacks
        free = [self._free[stack] for stack in stacks]
        if wanted_bytes > sum(free):
            raise self.exhausted(owner, core=core, wanted_bytes=wanted_bytes)
        self._usage = None
        by_stack = self._held.setdefault((owner, core), [0] * self.cores.stacks)
        for stack, taken in zip(stacks, taken_level(free, wanted_bytes), strict=True):
            self._free[stack] -= taken
            by_stack[stack] += taken

    def allocate_on_cores(self, owner: HbmOwner, wanted_bytes: Sequence[int]) -> None:
        """Give `owner` bytes on every core, [cores]; all or none; raises HbmExhausted."""
        with self.whole_or_nothing():
            for core, core_bytes in enumerate(wanted_bytes):
                self.allocate(owner, core=core, wanted_bytes=core_bytes)

    def free(self, owner: HbmOwner, *, core: int | None = None) -> int:
        """Free all bytes of `owner`, on one core or on all; returns their number."""
        self._usage = None
        freed = 0
        for held_owner, held_core in list(self._held):
            if held_owner == owner and core in (None, held_core):
                for stack, count in enumerate(self._held.pop((held_owner, held_core))):
                    self._free[stack] += count
                    freed += count
        return freed

    def resize_on_cores(self, owner: HbmOwner, wanted_bytes: Sequence[int]) -> None:
        """Set the bytes of `owner` on every core, [cores]; all or none; raises HbmExhausted."""
        with self.whole_or_nothing():
            self.free(owner)
            self.allocate_on_cores(owner, wanted_bytes)

    @contextmanager
    def whole_or_nothing(self) -> Iterator[None]:
        """Group changes: HbmExhausted inside undoes them all and propagates."""
        before = self.copy(device=self.device)
        try:
            yield
        except HbmExhausted:
            self._free, self._held, self._usage = before._free, before._held, None
            raise

    def held_bytes(self, owner: HbmOwner, *, core: int | None = None) -> int:
        """Bytes of `owner`, on one core or on all."""
        return sum(
            sum(by_stack)
            for (held_owner, held_core), by_stack in self._held.items()
            if held_owner == owner and core in (None, held_core)
        )

    def region_free_bytes(self, core: int) -> int:
        """Free bytes in the stacks of `core`, shared with its siblings."""
        return sum(self._free[stack] for stack in self.cores.cores[core].stacks)

    @property
    def free_bytes(self) -> int:
        """Free bytes of the chip."""
        return sum(self._free)

    def held(self) -> tuple[tuple[HeldBytes, ...], ...]:
        """Held bytes of each stack, by core, then owner; without zeros."""
        entries = sorted(self._held.items(), key=lambda item: (item[0][1], item[0][0]))
        return tuple(
            tuple(
                HeldBytes(owner=owner, core=core, held_bytes=by_stack[stack])
                for (owner, core), by_stack in entries
                if by_stack[stack]
            )
            for stack in range(self.cores.stacks)
        )

    def usage(self) -> tuple[StackUsage, ...]:
        """Bytes of each stack by owner's name, in owner order; cached for pollers."""
        if self._usage is None:
            self._usage = tuple(
                StackUsage(
                    stack=stack, capacity_bytes=self.cores.stack_bytes, owner_bytes=_by_owner(held)
                )
                for stack, held in enumerate(self.held())
            )
        return self._usage

    def exhausted(
        self, owner: HbmOwner, *, core: int, wanted_bytes: int, free_bytes: int | None = None
    ) -> HbmExhausted:
        """The error for a failed allocation, with this chip's usage table.

        `free_bytes` is the limit of `owner`, if less than is free.
        """
        failed = FailedAllocation(
            device=self.device, core=core, owner=owner, wanted_bytes=wanted_bytes
        )
        return HbmExhausted(
            owner=str(owner),
            wanted_bytes=wanted_bytes,
            free_bytes=self.region_free_bytes(core) if free_bytes is None else free_bytes,
            table=failure_report(failed, self.usage(), self.held(), self.cores),
        )

    def check(self) -> None:
        """Assert that used and free bytes of every stack sum to its capacity."""
        for stack in range(self.cores.stacks):
            held = [by_stack[stack] for by_stack in self._held.values()]
            assert min(held, default=0) >= 0, (stack, held)
            assert self._free[stack] >= 0, (stack, self._free)
            assert sum(held) + self._free[stack] == self.cores.stack_bytes, (stack, self._free)
        for (owner, core), by_stack in self._held.items():
            seen = self.cores.cores[core].stacks
            elsewhere = [count for stack, count in enumerate(by_stack) if stack not in seen]
            assert not any(elsewhere), (owner, core, by_stack)


def taken_level(free: Sequence[int], wanted_bytes: int) -> list[int]:
    """Bytes to take from each of several stacks so that the freest end up level.

    `free` has `wanted_bytes` in all. From the fullest stack on, each keeps its free bytes or an
    even share of all that may stay free, whichever is less.
    """
    taken = [0] * len(free)
    staying = sum(free) - wanted_bytes
    fullest_first = sorted(range(len(free)), key=lambda stack: free[stack])
    for position, stack in enumerate(fullest_first):
        stays = min(free[stack], staying // (len(free) - position))
        taken[stack] = free[stack] - stays
        staying -= stays
    return taken


def _by_owner(held: Sequence[HeldBytes]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for each in sorted(held, key=lambda each: each.owner):
        totals[str(each.owner)] = totals.get(str(each.owner), 0) + each.held_bytes
    return totals
