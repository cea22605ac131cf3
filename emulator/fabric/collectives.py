"""Collectives over groups of chips: duration, algorithm, bus bandwidth.

Duration is the steps' starts and hops, then the longer of links' and memory's time for the bytes,
by the fastest algorithm for the size. Not counted: single descriptors of a mesh's many transfers,
and reductions inside switches (SHARP).

Several ranks of a chip, such as logical cores, take part through it: bytes to or from other chips
cross the links once, and are spread or summed on the chip.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Self

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.errors import ConfigError
from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.group_layout import hypercube, level_meshes, level_rings, levels, ring_shares
from emulator.fabric.group_links import GroupLinks, LinkTime
from emulator.fabric.memory_accesses import MemoryAccesses
from emulator.fabric.schedules import Algorithm, CollectiveSchedule, last_phases, mesh, phases, ring
from emulator.specs.system import SystemSpec, Topology


class Operation(StrEnum):
    """Operations of ranks, sized as in nccom-test and nccl-tests: the whole result of an
    all-gather, the whole input of a reduce-scatter, else each rank's bytes.
    """

    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"
    ALL_TO_ALL = "all-to-all"
    PERMUTE = "permute"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveTime:
    """Collectives of some sizes in every group; arrays are [..., groups], like the sizes."""

    duration_ns: Float64s
    link_busy_ns: Float64s
    choice: Int64s  # which of `algorithms` was the fastest
    algorithms: tuple[Algorithm, ...]

    def algorithm(self, *where: int) -> Algorithm:
        """The algorithm of one collective, by its index in the arrays."""
        return self.algorithms[int(self.choice[where])]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cost:
    algorithm: Algorithm
    latency_ns: Float64s  # [groups]
    link_ns_per_byte: Float64s  # [groups]
    accesses: float  # of HBM, per byte and chip


class CollectiveModel:
    """Collectives of `groups`, int64[groups, chips], disjoint.

    `ranks_per_chip` of each chip take part; ConfigError below one. `all_to_all`: the links of the
    same chips, group after group, with their faults; whole by default.
    """

    def __init__(
        self,
        system: SystemSpec,
        groups: Int64s,
        *,
        ranks_per_chip: int = 1,
        all_to_all: AllToAll | None = None,
    ) -> None:
        if ranks_per_chip < 1:
            raise ConfigError("ranks_per_chip", ranks_per_chip, "at least 1")
        self._system = system
        self._groups: int = groups.shape[0]
        self._chips: int = groups.shape[1]
        self._per_chip = ranks_per_chip
        self.ranks = self._chips * ranks_per_chip
        self._start_ns: float = system.chip.dma_start_ns.value
        self._accesses = MemoryAccesses(system.chip, self._chips, ranks_per_chip)
        self._costs: dict[Operation, tuple[_Cost, ...]] = {}
        if self._chips > 1:
            self._links = GroupLinks(system, groups, all_to_all)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self._groups

    def time(self, operation: Operation, size_bytes: Float64s) -> CollectiveTime:
        """Time collectives of `size_bytes`, float64[..., groups]; 0 without bytes."""
        if self.ranks == 1:
            nothing = np.zeros_like(size_bytes)
            return CollectiveTime(
                duration_ns=nothing,
                link_busy_ns=nothing,
                choice=nothing.astype(np.int64),
                algorithms=(Algorithm.MESH,),
            )
        costs = self._costs_of(operation)
        # What a group cannot run takes for ever, and for ever times nothing is no number.
        sizes = np.where(size_bytes > 0, size_bytes, 1.0)
        links_ns = np.stack([cost.link_ns_per_byte * sizes for cost in costs])
        total_ns = np.stack(list(self.times_by_algorithm(operation, sizes).values()))
        choice = total_ns.argmin(axis=0)
        best_ns = np.take_along_axis(total_ns, choice[None], axis=0)[0]
        return CollectiveTime(
            duration_ns=np.where(size_bytes > 0, best_ns, 0.0),
            link_busy_ns=np.where(
                size_bytes > 0, np.take_along_axis(links_ns, choice[None], axis=0)[0], 0.0
            ),
            choice=choice,
            algorithms=tuple(cost.algorithm for cost in costs),
        )

    def times_by_algorithm(
        self, operation: Operation, size_bytes: Float64s
    ) -> dict[Algorithm, Float64s]:
        """Duration by algorithm, [..., groups]; infinite where a group cannot run it."""
        return {
            cost.algorithm: cost.latency_ns
            + np.maximum(
                cost.link_ns_per_byte * size_bytes,
                self._accesses.time_ns(cost.accesses, size_bytes),
            )
            for cost in self._costs_of(operation)
        }

    def bus_bytes_per_s(
        self, operation: Operation, size_bytes: Float64s, duration_ns: Float64s
    ) -> Float64s:
        """Bus bandwidth as printed by nccom-test and nccl-tests."""
        part = (self.ranks - 1) / self.ranks
        factor = {Operation.ALL_REDUCE: 2 * part, Operation.PERMUTE: 1.0}.get(operation, part)
        rate: Float64s = factor * size_bytes / duration_ns * 1e9
        return rate

    def kinds(self, operations: Sequence[Operation]) -> tuple[Int64s, Int64s]:
        """The first group of each kind, and every group's kind; a kind takes equally long."""
        costs = [cost for operation in operations for cost in self._costs_of(operation)]
        each = [array for cost in costs for array in (cost.latency_ns, cost.link_ns_per_byte)]
        _, first, kind = np.unique(np.array(each), axis=1, return_index=True, return_inverse=True)
        return first, kind.ravel()

    def figures(self, operations: Sequence[Operation]) -> tuple[object, ...]:
        """All that the times of `operations` depend on: equal ones take equally long."""
        costs = [cost for operation in operations for cost in self._costs_of(operation)]
        of_links = [
            (cost.algorithm, cost.latency_ns.tobytes(), cost.link_ns_per_byte.tobytes())
            for cost in costs
        ]
        return (self._system.chip, self._chips, self._per_chip, *of_links)

    def of_groups(self, groups: Int64s) -> Self:
        """The same for some of the groups, for the operations that were timed."""
        only = copy(self)
        only._groups = len(groups)
        only._costs = {
            operation: tuple(
                replace(
                    cost,
                    latency_ns=cost.latency_ns[groups],
                    link_ns_per_byte=cost.link_ns_per_byte[groups],
                )
                for cost in costs
            )
            for operation, costs in self._costs.items()
        }
        return only

    def _costs_of(self, operation: Operation) -> tuple[_Cost, ...]:
        if operation not in self._costs:
            self._costs[operation] = tuple(self._work_out(operation))
        return self._costs[operation]

    def _work_out(self, operation: Operation) -> list[_Cost]:
        match operation:
            case Operation.ALL_GATHER:
                return self._gathering(self._accesses.gather)
            case Operation.REDUCE_SCATTER:
                return self._gathering(self._accesses.reduce)
            case Operation.ALL_REDUCE:
                return self._all_reduce()
            case Operation.ALL_TO_ALL:
                return [self._direct(mesh(self._chips), Algorithm.MESH)]
        return [self._direct(self._onward(), Algorithm.RING)]

    def _gathering(self, accesses: Callable[[Algorithm], float]) -> list[_Cost]:
        """Every algorithm of an all-gather, or of a reduce-scatter, which moves the same bytes."""
        costs = []
        for algorithm, link in self._link_times.items():
            if np.isfinite(link.latency_ns).any():
                costs.append(
                    _Cost(
                        algorithm=algorithm,
                        latency_ns=link.latency_ns + self._on_chip_ns(algorithm),
                        link_ns_per_byte=link.ns_per_byte,
                        accesses=accesses(algorithm),
                    )
                )
        return costs

    def _all_reduce(self) -> list[_Cost]:
        """A reduce-scatter and an all-gather by the same algorithm, or a mesh's single step."""
        scatter = self._costs_of(Operation.REDUCE_SCATTER)
        gather = self._costs_of(Operation.ALL_GATHER)
        costs = [
            _Cost(
                algorithm=first.algorithm,
                latency_ns=first.latency_ns + second.latency_ns,
                link_ns_per_byte=first.link_ns_per_byte + second.link_ns_per_byte,
                accesses=first.accesses + second.accesses,
            )
            for first, second in zip(scatter, gather, strict=True)
        ]
        once = gather[0]
        single = _Cost(
            algorithm=Algorithm.SINGLE_STEP,
            latency_ns=once.latency_ns,
            link_ns_per_byte=once.link_ns_per_byte * self._chips,
            accesses=self._accesses.single_step(),
        )
        return [*costs, single]

    def _direct(self, schedule: CollectiveSchedule, algorithm: Algorithm) -> _Cost:
        moved = schedule.moved
        if algorithm is Algorithm.MESH:
            moved = moved * self._per_chip  # each rank has its own bytes for everyone
        link = self._time(lambda _: CollectiveSchedule(moved=moved, times=schedule.times))
        return _Cost(
            algorithm=algorithm,
            latency_ns=np.maximum(link.latency_ns, self._start_ns),
            link_ns_per_byte=link.ns_per_byte,
            accesses=self._accesses.copy(),
        )

    def _onward(self) -> CollectiveSchedule:
        """Each chip's bytes to the next of its group, the last one's to the first."""
        moved = np.roll(np.eye(self._chips), 1, axis=1)
        np.fill_diagonal(moved, 0.0)
        return CollectiveSchedule(moved=moved[None], times=np.ones(1, dtype=np.int64))

    @cached_property
    def _link_times(self) -> dict[Algorithm, LinkTime]:
        """The links' part of an all-gather by each algorithm that these ranks can run."""
        times = {Algorithm.MESH: self._time(lambda _: mesh(self._chips))}
        if self._chips > 2:  # two chips do the same in any way
            around = self._time(lambda group: ring(ring_shares(self._system, group)))
            times[Algorithm.RING] = around
            times[Algorithm.RDH] = self._striped(hypercube)
            times[Algorithm.HIERARCHICAL] = self._time(self._farthest_first)
            times[Algorithm.STRIPED] = self._striped(levels)
            if self._system.topology is Topology.TORUS:
                times[Algorithm.STRIPED_RINGS] = self._striped(levels, rings=True)
        else:
            times[Algorithm.RING] = times[Algorithm.MESH]
        if self._per_chip % 2 == 0:
            times[Algorithm.KANGARING] = times[Algorithm.RING]
        return times

    def _farthest_first(self, group: Int64s) -> CollectiveSchedule | None:
        """An all-gather between the parts of the farthest level first; None for a single level."""
        level = levels(self._system, group)
        if level is None or level.shape[1] == 1:
            return None
        return phases(level, np.eye(level.shape[1])[0], level_meshes(level))

    def _striped(
        self, layout: Callable[[SystemSpec, Int64s], Int64s | None], *, rings: bool = False
    ) -> LinkTime:
        """An all-gather by levels, with stripes as wide as their last level is fast.

        A single level is a mesh or a ring, without a schedule.
        """
        found = [layout(self._system, group) for group in self._links.kinds]
        found = [None if level is None or level.shape[1] == 1 else level for level in found]
        moves_of = level_rings if rings else level_meshes
        alone = self._links.steps_ns_per_byte(
            [None if level is None else last_phases(level, moves_of(level)) for level in found]
        )
        schedules: list[CollectiveSchedule | None] = []
        for level, step_ns in zip(found, alone, strict=True):
            if level is None or step_ns is None or not step_ns.any():  # nothing reaches anything
                schedules.append(None)
                continue
            speed = np.where(step_ns > 0, 1 / np.maximum(step_ns, np.finfo(float).tiny), 0.0)
            steps = int(level.max()) if rings else 1
            schedules.append(phases(level, speed / speed.sum(), moves_of(level), steps=steps))
        return self._links.time(schedules)

    def _time(self, schedule_of: Callable[[Int64s], CollectiveSchedule | None]) -> LinkTime:
        """The links' time of one schedule per kind of group; 0 for a single chip."""
        if self._chips == 1:
            nothing = np.zeros(self._groups)
            return LinkTime(latency_ns=nothing, ns_per_byte=nothing)
        return self._links.time([schedule_of(group) for group in self._links.kinds])

    def _on_chip_ns(self, algorithm: Algorithm) -> float:
        """Starts of the transfers between a chip's ranks: a ring's steps, or one exchange."""
        starts = {
            Algorithm.RING: self.ranks - self._chips,
            Algorithm.KANGARING: max(self.ranks // 2 - self._chips, 0),
        }
        count: int = starts.get(algorithm, int(self._per_chip > 1))
        return self._start_ns * count
