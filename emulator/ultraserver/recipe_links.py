"""Communication of training recipes on the first chips of a system, each kind by itself.

A collective takes as long as its slowest group: those that lie alike in scale-up domains are timed
once. Durations are under the calibration; the links' part is at peak rates, for energy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.errors import ConfigError
from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.collectives import CollectiveModel, Operation
from emulator.fabric.tiers import tiers_of
from emulator.specs.calibration import Calibration
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.issue_shape import IssueShape
from emulator.ultraserver.expert_phase import ExpertPhaseModel
from emulator.ultraserver.gradient_collectives import bucketed_ns, moved_bytes
from emulator.ultraserver.machine_layout import MachineLayout

Made = TypeVar("Made")
HIDDEN_BYTES: Final = 2  # hidden rows and their gradients travel in BF16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TalkTime:
    """Durations, the links' busy part at peak rates, bytes that HBM moves for it; of one shape.

    As in serving, rows of tokens are counted by the products that make and take them.
    """

    duration_ns: Float64s
    link_ns: Float64s
    hbm_bytes: Float64s | float = 0.0

    def times(self, count: Float64s | Int64s | float) -> "TalkTime":
        """So many in sequence."""
        return TalkTime(
            duration_ns=count * self.duration_ns,
            link_ns=count * self.link_ns,
            hbm_bytes=np.multiply(count, self.hbm_bytes, dtype=np.float64),
        )

    def __add__(self, other: "TalkTime") -> "TalkTime":
        return TalkTime(
            duration_ns=self.duration_ns + other.duration_ns,
            link_ns=self.link_ns + other.link_ns,
            hbm_bytes=self.hbm_bytes + other.hbm_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExchangeLoads:
    """A layer's routed experts on the fullest chip, [loads] each, and both exchanges together."""

    pairs: Float64s
    distinct: Float64s
    exchange: TalkTime


def job_chips(system: SystemSpec, chips: int) -> Int64s:
    """The system's numbers of a job's chips: equally many in as few scale-up domains as possible.

    Raises ConfigError where the system has not so many, or they divide over no number of domains.
    """
    width = system.chips.count // system.units
    least = max(1, -(-chips // width))
    fitting = [units for units in range(least, system.units + 1) if chips % units == 0]
    if chips < 1 or not fitting:
        expected = f"1 to {system.chips.count}, equally many in each domain of {width}"
        raise ConfigError("chips", chips, expected)
    in_each = chips // fitting[0]
    physical: Int64s = (np.arange(fitting[0])[:, None] * width + np.arange(in_each)).ravel()
    return physical


class RecipeLinks:
    """Links of jobs of `model`, as trained, on `chips` of `system` (`job_chips`)."""

    def __init__(
        self, system: SystemSpec, model: ModelSpec, chips: int, calibration: Calibration
    ) -> None:
        self._system = system
        self._model = model
        self._chips = chips
        self._physical = job_chips(system, chips)
        self._calibration = calibration
        self._width = system.chips.count // system.units  # of a scale-up domain
        self._made: dict[object, object] = {}

    def of_model(self, model: ModelSpec) -> "RecipeLinks":
        """The same links for other weights, with what was worked out of the fabric."""
        other = RecipeLinks(self._system, model, self._chips, self._calibration)
        other._made = {
            key: made for key, made in self._made.items() if not isinstance(made, ExpertPhaseModel)
        }
        return other

    def tensor(self, operation: Operation, tp: int, size_bytes: Float64s) -> TalkTime:
        """A collective of a rank's chips: [...]."""
        if tp == 1:
            return _nothing(size_bytes)
        return self._slowest(operation, self._physical.reshape(-1, tp), size_bytes)

    def replicas(
        self, operation: Operation, tp: int, pp: int, sizes: Float64s, buckets: Int64s
    ) -> TalkTime:
        """Of all replicas of each stage, [..., stages] in `buckets` [stages]."""
        chips = self._physical.reshape(pp, -1, tp)[:, :, 0]
        return self._by_stage(operation, ("replicas", tp, pp), chips, sizes, buckets)

    def copies(
        self, operation: Operation, ep: int, pp: int, sizes: Float64s, buckets: Int64s
    ) -> TalkTime:
        """Of the chips of each stage with copies of the same experts, [..., stages]."""
        chips = self._physical.reshape(pp, -1, ep)[:, :, 0]
        return self._by_stage(operation, ("copies", ep, pp), chips, sizes, buckets)

    def hop(self, pp: int, size_bytes: Float64s) -> TalkTime:
        """Bytes from a stage to the next: [...]."""
        if pp == 1:
            return _nothing(size_bytes)
        first = self._physical[:: self._chips // pp]  # of each stage
        groups = np.stack([first[:-1], first[1:]], axis=1)
        return self._slowest(Operation.PERMUTE, groups, size_bytes)

    def experts(self, ep: int, stage_chips: int, tokens: Float64s) -> ExchangeLoads:
        """Of `tokens` [loads] of every chip, in groups of `ep`; groups of one do not exchange."""
        assert stage_chips % ep == 0, (stage_chips, ep)
        groups = self._kept(("ep", ep), lambda: self._alike(self._physical.reshape(-1, ep)))
        found = [self._experts_of(group, tokens) for group in groups]
        slowest = np.argmax([each.exchange.duration_ns.max() for each in found])
        return found[slowest]

    def _experts_of(self, chips: Int64s, tokens: Float64s) -> ExchangeLoads:
        phase = self._kept(("experts", *chips[[0, -1]].tolist()), lambda: self._phase(chips))
        loads, links, latencies = [], [], []
        for each in tokens:
            group = np.full(len(chips), len(chips) * each)
            pairs, distinct = phase.routing.pairs(group), phase.routing.distinct(group)
            fullest = np.unravel_index(pairs.argmax(), pairs.shape)
            loads.append((pairs[fullest], distinct[fullest]))
            link_ns, latency_ns, _ = phase.links(np.full(len(chips), each))
            links.append(link_ns.max())
            latencies.append(latency_ns.max())
        link_ns, latency_ns = np.array(links), np.array(latencies)
        share = self._calibration.exchange_share.value
        started_ns = self._calibration.exchange_ns.value * (link_ns + latency_ns > 0)
        sent = 1 + phase.dispatch_share  # of a combine's bytes: dispatch and combine
        return ExchangeLoads(
            pairs=np.array(loads)[:, 0],
            distinct=np.array(loads)[:, 1],
            exchange=TalkTime(
                duration_ns=sent * link_ns / share + 2 * (latency_ns + started_ns),
                link_ns=sent * link_ns,
            ),
        )

    def _phase(self, chips: Int64s) -> ExpertPhaseModel:
        system, model, first, ep = self._system, self._model, int(chips[0]), len(chips)
        lnc = system.chip.default_lnc.count  # the fabric's part does not depend on it
        layout = MachineLayout(
            system=system,
            model=model,
            partition=Partition(chips=ep, ep=ep, lnc=lnc, first_chip=first),
            placement=ExpertPlacement.even(
                layers=model.moe_layers, experts=model.experts, chips=ep, ep=ep
            ),
            distribution=ExpertDistribution.uniform(model),
            all_to_all=AllToAll(system, ep, physical=chips),
            physical=chips,
            chips_up=np.ones(ep, dtype=np.bool_),
        )
        cores = system.chip.cores.count // lnc
        return ExpertPhaseModel(layout, IssueShape.of(model, system.chip, tp=1, cores=cores))

    def _by_stage(
        self, operation: Operation, key: object, chips: Int64s, sizes: Float64s, buckets: Int64s
    ) -> TalkTime:
        """`chips` [stages, group]: each stage's are timed by themselves."""
        if chips.shape[1] == 1:
            return _nothing(sizes)
        model = self._kept(key, lambda: CollectiveModel(self._system, chips))
        duration_ns, link_ns = bucketed_ns(
            model, operation, sizes, buckets=np.maximum(buckets, 1), calibration=self._calibration
        )
        moved = moved_bytes(sizes, chips.shape[1])
        return TalkTime(duration_ns=duration_ns, link_ns=link_ns, hbm_bytes=moved)

    def _slowest(self, operation: Operation, groups: Int64s, size_bytes: Float64s) -> TalkTime:
        key = ("groups", groups.shape, groups.tobytes())
        model = self._kept(key, lambda: CollectiveModel(self._system, self._alike(groups)))
        sizes = np.repeat(size_bytes[..., None], model.groups, axis=-1)
        duration_ns, link_ns = bucketed_ns(
            model, operation, sizes, buckets=1, calibration=self._calibration
        )
        return TalkTime(duration_ns=duration_ns.max(axis=-1), link_ns=link_ns.max(axis=-1))

    def _alike(self, groups: Int64s) -> Int64s:
        """One of each kind of groups, by the tiers between their chips: [kinds, chips]."""
        if len(groups) == 1:
            return groups
        inside = groups[:, -1] // self._width == groups[:, 0] // self._width
        offset = np.where(inside, groups[:, 0] % self._width, groups[:, 0])
        _, first = np.unique(np.stack([inside, offset]), axis=1, return_index=True)
        kinds = {tiers_of(self._system, groups[each]).tobytes(): each for each in first}
        return groups[sorted(kinds.values())]

    def _kept(self, key: object, make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[return-value]


def _nothing(sizes: Float64s) -> TalkTime:
    none = np.zeros(np.shape(sizes))
    return TalkTime(duration_ns=none, link_ns=none)
