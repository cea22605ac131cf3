"""Collectives of a training step beside its token exchanges: gradients out, weights back.

Dense gradients are reduce-scattered over all chips, in FP32; a part's owner updates it, and new
weights are all-gathered. Chips with copies of the same experts do so among themselves. Assumed: a
bucket for each layer, one after the other.
"""

from dataclasses import dataclass
from functools import cached_property
from math import log2

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.fabric.collectives import CollectiveModel, Operation
from emulator.memory.training_memory import GRADIENT_BYTES
from emulator.specs.calibration import Calibration
from emulator.specs.model import ModelSpec
from emulator.specs.system import SystemSpec
from emulator.specs.tensor_group import TensorSplit
from emulator.timing.product_rate import ProductRate
from emulator.timing.roofline import DMA, ENGINES
from emulator.ultraserver.step_work import StepWork
from emulator.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Talk:
    """Collectives in sequence: their duration, and their work on each chip."""

    duration_ns: float
    work: StepWork

    def __add__(self, other: "Talk") -> "Talk":
        return Talk(duration_ns=self.duration_ns + other.duration_ns, work=self.work + other.work)


def bucketed_ns(
    model: CollectiveModel,
    operation: Operation,
    sizes: Float64s,
    *,
    buckets: Int64s | int,
    calibration: Calibration,
) -> tuple[Float64s, Float64s]:
    """Duration, and the links' part of it at peak rates, of `sizes` [..., groups] in buckets."""
    time = model.time(operation, sizes / buckets)
    links_ns = buckets * time.link_busy_ns
    rest_ns = buckets * np.maximum(time.duration_ns - time.link_busy_ns, 0.0)
    started_ns = buckets * log2(model.ranks) * calibration.collective_ns.value * (sizes > 0)
    return links_ns / calibration.link_share.value + rest_ns + started_ns, links_ns


def moved_bytes(sizes: Float64s, ranks: int) -> Float64s:
    """Bytes of a chip's HBM: read where they are sent from, written where they arrive."""
    moved: Float64s = 2 * ((ranks - 1) / ranks * sizes)
    return moved


class GradientCollectives:
    """Collectives of a job on `chips`, int64[chips] of the system, in expert groups of `group`.

    `own_experts` [chips]: experts on each chip, summed over layers.
    """

    def __init__(
        self,
        system: SystemSpec,
        model: ModelSpec,
        chips: Int64s,
        *,
        group: int,
        own_experts: Int64s,
        calibration: Calibration,
    ) -> None:
        self._system = system
        self._model = model
        self._chips = chips
        self._group = group
        self._own_experts = own_experts
        self._calibration = calibration

    @property
    def nothing(self) -> Talk:
        """No collective."""
        count = len(self._chips)
        work = StepWork(
            engine_ns=np.zeros((len(ENGINES), count)),
            link_ns=np.zeros(count),
            flops=np.zeros((len(ProductRate), count)),
            hbm_bytes=np.zeros(count),
            link_bytes=np.zeros(count),
        )
        return Talk(duration_ns=0.0, work=work)

    def reduce_dense(self) -> Talk:
        """Dense gradients to their owners."""
        size = GRADIENT_BYTES * self._model.replica_parameters()
        return self._dense_talk(Operation.REDUCE_SCATTER, size)

    def gather_dense(self) -> Talk:
        """Dense weights from their owners."""
        held = self._model.tensor_groups()
        size = sum(group.copy_bytes for group in held if group.split is not TensorSplit.EXPERT)
        return self._dense_talk(Operation.ALL_GATHER, size)

    def reduce_experts(self) -> Talk:
        """Gradients of experts, among the chips with copies."""
        size = GRADIENT_BYTES * self._model.expert_parameters
        return self._expert_talk(Operation.REDUCE_SCATTER, size)

    def gather_experts(self) -> Talk:
        """Weights of experts, among the chips with copies."""
        return self._expert_talk(Operation.ALL_GATHER, self._model.expert_bytes)

    @cached_property
    def _over_all(self) -> CollectiveModel:
        return CollectiveModel(self._system, self._chips[None, :])

    @cached_property
    def _over_copies(self) -> CollectiveModel:
        return CollectiveModel(self._system, self._chips.reshape(-1, self._group).T.copy())

    def _dense_talk(self, operation: Operation, size_bytes: int) -> Talk:
        if len(self._chips) == 1:
            return self.nothing
        sizes = np.array([float(size_bytes)])
        return self._talk(self._over_all, operation, sizes, len(self._chips))

    def _expert_talk(self, operation: Operation, expert_bytes: int) -> Talk:
        copies = len(self._chips) // self._group
        if copies == 1 or not self._model.experts:
            return self.nothing
        sizes = self._own_experts[: self._group].astype(np.float64) * expert_bytes
        return self._talk(self._over_copies, operation, sizes, copies)

    def _talk(
        self, model: CollectiveModel, operation: Operation, sizes: Float64s, ranks: int
    ) -> Talk:
        """`sizes` are of all layers together, [groups]; chips are ordered by group."""
        total_ns, links_ns = bucketed_ns(
            model, operation, sizes, buckets=self._model.layers, calibration=self._calibration
        )
        own = self._own_groups(len(sizes))  # [chips] -> group
        moved = moved_bytes(sizes[own], ranks)
        work = self.nothing.work
        engine_ns = work.engine_ns.copy()
        engine_ns[DMA] = moved / self._system.chip.memory_bytes_per_s * NS_PER_S
        return Talk(
            duration_ns=float(total_ns.max()),
            work=StepWork(
                engine_ns=engine_ns,
                link_ns=links_ns[own],
                flops=work.flops,
                hbm_bytes=moved,
                link_bytes=moved / 2,
            ),
        )

    def _own_groups(self, groups: int) -> Int64s:
        """The group of each chip among `groups`: one for all, or one per place in a group."""
        own: Int64s = np.arange(len(self._chips)) % groups
        return own
