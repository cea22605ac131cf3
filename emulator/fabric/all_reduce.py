"""Collectives of tensor parallelism, over the chips of each rank."""

from copy import copy
from functools import lru_cache
from typing import Final, Self

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.collectives import CollectiveModel, CollectiveTime, Operation
from emulator.specs.system import SystemSpec


@lru_cache(maxsize=8)
def _on_whole_links(
    system: SystemSpec, tp: int, physical: bytes, all_to_all: AllToAll
) -> CollectiveModel:
    """In a sweep, partitions that follow each other lie on the same links."""
    groups = np.frombuffer(physical, dtype=np.int64).reshape(-1, tp)
    return CollectiveModel(system, groups, all_to_all=all_to_all)


_OPERATIONS: Final = (Operation.ALL_GATHER, Operation.ALL_REDUCE)


@lru_cache(maxsize=8)
def _one_of_each_kind(model: CollectiveModel) -> tuple[CollectiveModel, Int64s]:
    """A model of one group of each kind, and every group's kind, int64[groups]."""
    first, kind_of_group = model.kinds(_OPERATIONS)
    return model.of_groups(first), kind_of_group


class RankAllReduce:
    """Collectives of ranks of `tp` chips each, by the fastest algorithm for each size.

    `physical`, int64[chips]: the system's chip numbers, `tp` in a row per rank; ValueError for a
    fraction of a rank. `all_to_all`: the same chips' links with their faults; whole by default.

    Methods map bytes per rank (the whole of the data), float64[steps x ranks], to nanoseconds of
    the same shape. Equal ones take equally long.
    """

    def __init__(
        self, system: SystemSpec, *, tp: int, physical: Int64s, all_to_all: AllToAll | None = None
    ) -> None:
        if len(physical) % tp:
            raise ValueError(f"{len(physical)} chips are not whole ranks of {tp}")
        self.tp = tp
        self._ranks = len(physical) // tp
        self._model = (
            _on_whole_links(system, tp, physical.tobytes(), all_to_all)
            if all_to_all is not None and all_to_all.is_whole
            else CollectiveModel(system, physical.reshape(-1, tp), all_to_all=all_to_all)
        )

    def one_of_each_kind(self) -> tuple[Self, Int64s]:
        """The same of one rank of each kind, and every rank's kind, int64[ranks].

        Collectives of ranks of a kind take equally long.
        """
        only = copy(self)
        only._model, kind_of_rank = _one_of_each_kind(self._model)
        only._ranks = int(kind_of_rank.max()) + 1
        return only, kind_of_rank

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankAllReduce) and self._figures() == other._figures()

    def __hash__(self) -> int:
        return hash(self._figures())

    def _figures(self) -> tuple[object, ...]:
        return self._model.figures(_OPERATIONS)

    def moving_ns(self, payload_bytes: Float64s) -> Float64s:
        """Busy time of each chip's links in an all-gather, one phase of an all-reduce."""
        return self._time(Operation.ALL_GATHER, payload_bytes).link_busy_ns.ravel()

    def all_gather_ns(self, payload_bytes: Float64s) -> Float64s:
        """Duration of an all-gather; 0 without bytes."""
        return self._time(Operation.ALL_GATHER, payload_bytes).duration_ns.ravel()

    def all_reduce_ns(self, payload_bytes: Float64s) -> Float64s:
        """Duration of an all-reduce; 0 without bytes."""
        return self._time(Operation.ALL_REDUCE, payload_bytes).duration_ns.ravel()

    def _time(self, operation: Operation, payload_bytes: Float64s) -> CollectiveTime:
        return self._model.time(operation, payload_bytes.reshape(-1, self._ranks))
