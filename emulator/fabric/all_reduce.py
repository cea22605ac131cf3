"""The collectives of tensor parallelism, over the chips of each rank."""

import numpy as np
from numpy.typing import NDArray

from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.collectives import CollectiveModel, CollectiveTime, Operation
from emulator.specs.system import SystemSpec

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


class RankAllReduce:
    """Collectives of ranks of `tp` chips each, each by the algorithm that is fastest for its size.

    `physical` are the system's numbers of the partition's chips in order, int64[chips]; a rank has
    `tp` of them in a row. `all_to_all` are the same chips' links with their faults; whole without
    it. Raises ValueError when they are no whole number of ranks.

    Every method takes the bytes of each rank's collective, float64[steps x ranks], of one step or
    of several one after the other, and gives nanoseconds, [steps x ranks]: the whole of what is
    reduced or gathered.
    """

    def __init__(
        self, system: SystemSpec, *, tp: int, physical: Int64s, all_to_all: AllToAll | None = None
    ) -> None:
        if len(physical) % tp:
            raise ValueError(f"{len(physical)} chips are not whole ranks of {tp}")
        self.tp = tp
        self._ranks = len(physical) // tp
        self._model = CollectiveModel(system, physical.reshape(-1, tp), all_to_all=all_to_all)

    def moving_ns(self, payload_bytes: Float64s) -> Float64s:
        """How long an all-gather, one phase of an all-reduce, keeps each chip's links busy."""
        return self._time(Operation.ALL_GATHER, payload_bytes).link_busy_ns.ravel()

    def all_gather_ns(self, payload_bytes: Float64s) -> Float64s:
        """Every chip has a part and gets all; nothing to move takes no time."""
        return self._time(Operation.ALL_GATHER, payload_bytes).duration_ns.ravel()

    def all_reduce_ns(self, payload_bytes: Float64s) -> Float64s:
        """Every chip has a whole and gets the sum."""
        return self._time(Operation.ALL_REDUCE, payload_bytes).duration_ns.ravel()

    def _time(self, operation: Operation, payload_bytes: Float64s) -> CollectiveTime:
        return self._model.time(operation, payload_bytes.reshape(-1, self._ranks))
