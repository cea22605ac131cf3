"""Link time of schedules on groups of chips, all groups at once.

Groups run at the same time, so bytes that pass other groups' links count there. Without failed
links between switches, groups of one layout take equally long, and one of each kind is computed.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float64s, Int64s
from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.schedules import CollectiveSchedule
from emulator.fabric.tiers import tiers_of
from emulator.specs.system import SystemSpec, Topology

Value = TypeVar("Value", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTime:
    """Link time of one schedule in each group; infinite where a group has no such schedule."""

    latency_ns: Float64s  # [groups]: all steps' starts and hops
    ns_per_byte: Float64s  # [groups]: links busy, of a byte of the whole result


class GroupLinks:
    """The links of disjoint `groups`, int64[groups, chips]; `all_to_all` is in group order."""

    def __init__(
        self, system: SystemSpec, groups: Int64s, all_to_all: AllToAll | None = None
    ) -> None:
        count = groups.shape[1]
        if system.topology is Topology.SWITCHED and (all_to_all is None or all_to_all.is_whole):
            keys = [tiers_of(system, group).tobytes() for group in groups]
            first = {key: keys.index(key) for key in keys}
            self.kinds: Int64s = groups[list(first.values())]
            self._kind = np.array([list(first).index(key) for key in keys])  # [groups]
            all_to_all = None
        else:
            self.kinds = groups
            self._kind = np.arange(len(groups))
        flat = self.kinds.ravel()
        self._all_to_all = all_to_all or AllToAll(system, len(flat), physical=flat)
        self._chips = count
        reachable = self._all_to_all.reachable()
        self._reachable = self._blocks(reachable)  # [kinds, chips, chips]
        self._latency_ns = self._blocks(self._all_to_all.latency_ns())
        self._latency_ns[~self._reachable] = 0.0

    def time(self, schedules: list[CollectiveSchedule | None]) -> LinkTime:
        """Time one schedule per kind of group; bytes without a path are left out."""
        there = [schedule for schedule in schedules if schedule is not None]
        steps = max((len(schedule.times) for schedule in there), default=0)
        kinds, chips = self.kinds.shape
        if not steps:
            nowhere = np.full(len(self._kind), np.inf)
            return LinkTime(latency_ns=nowhere, ns_per_byte=nowhere)
        moved = np.zeros((steps, kinds * chips, kinds * chips))
        times = np.zeros((steps, kinds), dtype=np.int64)
        for kind, schedule in enumerate(schedules):
            if schedule is not None:
                own, count = slice(kind * chips, (kind + 1) * chips), len(schedule.times)
                moved[:count, own, own] = schedule.moved * self._reachable[kind]
                times[:count, kind] = schedule.times
        busy_ns = self._all_to_all.exchange_layers(moved).link_busy_ns  # [steps, kinds * chips]
        slowest_ns = busy_ns.reshape(steps, kinds, chips).max(axis=2)
        used = np.stack([self._blocks(step) for step in moved]) > 0  # [steps, kinds, c, c]
        hops_ns = np.where(used, self._latency_ns, 0.0).max(axis=(2, 3))  # [steps, kinds]
        none = np.array([schedule is None for schedule in schedules])
        latency_ns = np.where(none, np.inf, (times * hops_ns).sum(axis=0))
        ns_per_byte = np.where(none, np.inf, (times * slowest_ns).sum(axis=0))
        return LinkTime(latency_ns=latency_ns[self._kind], ns_per_byte=ns_per_byte[self._kind])

    def steps_ns_per_byte(
        self, schedules: list[CollectiveSchedule | None]
    ) -> list[Float64s | None]:
        """Time of each step of each kind's schedule alone, per byte: [steps] per kind."""
        found: list[Float64s | None] = []
        for kind, schedule in enumerate(schedules):
            if schedule is None:
                found.append(None)
                continue
            own = slice(kind * self._chips, (kind + 1) * self._chips)
            size = len(self.kinds) * self._chips
            moved = np.zeros((len(schedule.times), size, size))
            moved[:, own, own] = schedule.moved * self._reachable[kind]
            found.append(self._all_to_all.exchange_layers(moved).link_busy_ns.max(axis=1))
        return found

    def _blocks(self, matrix: NDArray[Value]) -> NDArray[Value]:
        """The parts of a matrix [kinds * chips, kinds * chips] within a group: [kinds, c, c]."""
        kinds, chips = self.kinds.shape
        own = np.arange(kinds)
        blocks: NDArray[Value] = matrix.reshape(kinds, chips, kinds, chips)[own, :, own, :]
        return blocks
