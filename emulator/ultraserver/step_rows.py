"""A counted step's rows under a calibration: peak times divided by shares, overheads added."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.calibration import Calibration
from emulator.timing.roofline import DMA, ENGINES, TENSOR
from emulator.ultraserver.step_terms import PhaseTerms, StepTerms

Float64s = NDArray[np.float64]

# What follows the engines in a row, in the order of `RowTimes.own_ns`; each is a part of the step.
OWN_OVERHEADS: Final = (
    "ramp",
    "core_collectives",
    "fill_drain",
    "dma_start",
    "kernel_launch",
    "layer",
    "expert_layer",
)
# Of each rank's engine, once per step, in the order of `TimedStep.host_ns`.
HOST_OVERHEADS: Final = ("step", "request", "prefill_step", "graph_launch")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTimes:
    """Times of rows under a calibration, columns as their terms' are."""

    engine_ns: Float64s  # [engines, rows, columns], without the clock's ramp
    busiest_ns: Float64s  # [rows, columns]
    own_ns: Float64s  # [overheads, rows, columns]
    link_ns: Float64s  # [rows, columns]
    launch_ns: Float64s  # [rows, columns], of collectives

    @property
    def compute_ns(self) -> Float64s:
        """Engines and what follows them: [rows, columns]."""
        total: Float64s = self.busiest_ns + self.own_ns.sum(axis=0)
        return total

    @property
    def communication_ns(self) -> Float64s:
        """Links and the launching of collectives: [rows, columns]."""
        return self.link_ns + self.launch_ns


def _row_times(
    terms: PhaseTerms,
    calibration: Calibration,
    *,
    slow: Float64s,
    layers: Float64s | float,
    expert_layers: Float64s | float,
) -> RowTimes:
    """`slow` is [columns]; `layers` and `expert_layers` [rows, 1] say where overheads are added."""
    shares = np.ones((len(ENGINES), 1, 1))
    shares[TENSOR], shares[DMA] = calibration.tensor_share.value, calibration.memory_share.value
    engine_ns = terms.engine_ns / shares
    busiest_ns = engine_ns.max(axis=0)
    ramped_ns = np.maximum(busiest_ns, engine_ns[TENSOR] + terms.ramp_ns)
    present = busiest_ns > 0
    own_ns = np.array(
        (
            slow * (ramped_ns - busiest_ns),
            slow * terms.core_ns,
            terms.fill_drain_ns,
            terms.dma_start_ns,
            terms.launch_ns,
            calibration.layer_ns.value * layers * present,
            calibration.expert_layer_ns.value * expert_layers * present,
        )
    )
    return RowTimes(
        engine_ns=engine_ns,
        busiest_ns=slow * busiest_ns,
        own_ns=own_ns,
        link_ns=terms.link_ns / calibration.link_share.value + terms.latency_ns,
        launch_ns=terms.collectives * calibration.collective_ns.value,
    )


class TimedStep:
    """The rows, segments and expert kinds of one counted step under one calibration."""

    def __init__(self, terms: StepTerms, calibration: Calibration) -> None:
        self.terms = terms
        self.kind_runs = terms.runs_of_kind
        self.link_share = calibration.link_share.value
        self.rows = _row_times(
            terms.rank,
            calibration,
            slow=terms.rank_slow,
            layers=terms.layers[:, None],
            expert_layers=terms.expert_layers[:, None],
        )
        self.compute_ns = terms.times @ self.rows.compute_ns  # [segments, ranks]
        self.communication_ns = terms.times @ self.rows.communication_ns
        self.host_ns = _host_ns(terms, calibration)  # [overheads, ranks]
        self.compute_ns[-1] += self.host_ns.sum(axis=0)
        self.experts = (
            None
            if terms.experts is None
            else _row_times(
                terms.experts, calibration, slow=terms.slow, layers=0.0, expert_layers=0.0
            )
        )

    def slowest(self, by_rank: Float64s) -> Float64s:
        """[segments, ranks] -> [segments, domains]."""
        terms = self.terms
        longest: Float64s = by_rank.reshape(-1, terms.domains, terms.ranks_per_domain).max(axis=2)
        return longest

    @property
    def expert_ns(self) -> Float64s:
        """Each domain's slowest chip: [kinds, domains]."""
        if self.experts is None:
            return np.zeros((0, self.terms.domains))
        chips = self.experts.compute_ns
        longest: Float64s = chips.reshape(len(chips), self.terms.domains, -1).max(axis=2)
        return longest

    @property
    def exchange_ns(self) -> Float64s:
        """Dispatch and combine, each of which ends for all at once: [2, kinds]."""
        if self.experts is None or self.terms.experts is None:
            return np.zeros((2, 0))
        combine_ns = self.experts.communication_ns.max(axis=1)
        spared = (1 - self.terms.dispatch_share) * self.terms.experts.link_ns.max(axis=1)
        return np.array((combine_ns - spared / self.link_share, combine_ns))


def _host_ns(terms: StepTerms, calibration: Calibration) -> Float64s:
    """Overheads of each rank's engine once per step: [step, request, prefill, graph; ranks]."""
    return np.array(
        (
            calibration.step_ns.value * terms.busy,
            calibration.request_ns.value * terms.requests,
            calibration.prefill_step_ns.value * (terms.prefills > 0),
            terms.launch_ns * terms.busy,
        )
    )
