"""Queues, KV cache and watts of a simulated run over time, gathered step by step."""

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.specs.batch import StepBatch
from emulator.ultraserver.step_cost import StepCost
from emulator.units import NS_PER_S
from serving.engine.scheduler_state import RankQueues

FIGURES: Final = ("running", "waiting", "kv_blocks_used", "watts_above_idle")


class StepSeries:
    """A watcher of steps (`serving.engine.step_batch.StepWatcher`): 48 bytes a step.

    `idle_watts` are a chip's. Steps of several engines overlap; their figures add up.
    """

    def __init__(self, idle_watts: float) -> None:
        self._idle_watts = idle_watts
        self._begin_ns, self._duration_ns = array("q"), array("q")
        self._figures = {name: array("d") for name in FIGURES}

    def __call__(
        self,
        cost: StepCost,
        batch: StepBatch,  # noqa: ARG002 - as the protocol has it
        *,
        begin_ns: int,
        queues: Sequence[RankQueues],
    ) -> None:
        """Take a step down."""
        self._begin_ns.append(begin_ns)
        self._duration_ns.append(cost.duration_ns)
        for name in ("running", "waiting", "kv_blocks_used"):
            self._figures[name].append(sum(getattr(rank, name) for rank in queues))
        watts = cost.chip_joules / cost.duration_ns * NS_PER_S
        idle_watts = self._idle_watts * len(cost.chip_watts)
        self._figures["watts_above_idle"].append(watts - idle_watts)

    def __len__(self) -> int:
        return len(self._begin_ns)

    def means(self, name: str, edges_ns: Int64s) -> Float64s:
        """The mean of one of FIGURES in each piece between edges, [pieces]; 0 without a step."""
        values = np.array(self._figures[name])
        begin_ns = np.array(self._begin_ns, dtype=np.int64)
        end_ns = begin_ns + np.array(self._duration_ns, dtype=np.int64)
        since = _since(begin_ns, values, edges_ns) - _since(end_ns, values, edges_ns)  # [edges]
        means: Float64s = np.diff(since) / np.diff(edges_ns)
        return means


def _since(at_ns: Int64s, values: Float64s, edges_ns: Int64s) -> Float64s:
    """At each edge, the sum of `values` times the ns since each one's time before it: [edges]."""
    order = np.argsort(at_ns, kind="stable")
    ordered_ns, ordered = at_ns[order] - edges_ns[0], values[order]
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    moments = np.concatenate([[0.0], np.cumsum(ordered * ordered_ns)])
    edges = edges_ns - edges_ns[0]
    come = np.searchsorted(ordered_ns, edges, side="right")
    found: Float64s = edges * sums[come] - moments[come]
    return found
