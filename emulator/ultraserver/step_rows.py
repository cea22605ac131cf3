"""Applies a calibration to a counted step's rows: peak times over shares, plus overheads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.specs.calibration import Calibration
from emulator.specs.figure import Figure
from emulator.timing.roofline import DMA, TENSOR
from emulator.ultraserver.step_terms import PhaseTerms, StepTerms

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
class ColumnCalibrations:
    """The calibration of each column: by `of_column`, or in order, or one for all.

    Raises ValueError unless engines overlap alike in all.
    """

    calibrations: Sequence[Calibration]
    of_column: Int64s | None = None  # [columns]

    def __post_init__(self) -> None:
        turns = {each.turn_taking.value for each in self.calibrations}
        if len(turns) != 1:
            raise ValueError(f"columns whose engines take turns alike, not {sorted(turns)}")

    def values(self, figure: Callable[[Calibration], Figure]) -> Float64s:
        """A figure of each column's calibration: [columns], or [1] for every column."""
        values = np.array([figure(each).value for each in self.calibrations])
        return values if self.of_column is None else values[self.of_column]

    @property
    def turn_taking(self) -> float:
        """See `Calibration.turn_taking`; the same in every column."""
        return self.calibrations[0].turn_taking.value

    def taken(self, columns: Int64s) -> Self:
        """The calibrations of `columns`."""
        if self.of_column is None and len(self.calibrations) == 1:
            return self
        each = np.arange(len(self.calibrations)) if self.of_column is None else self.of_column
        return replace(self, of_column=each[columns])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTimes:
    """Times of rows under a calibration, with the terms' columns."""

    engine_ns: Float64s  # [engines, rows, columns], without the clock's ramp
    busiest_ns: Float64s  # [rows, columns]
    own_ns: Float64s  # [overheads, rows, columns]
    link_ns: Float64s  # [rows, columns]
    launch_ns: Float64s  # [rows, columns], of collectives

    @property
    def compute_ns(self) -> Float64s:
        """Engines and their overheads: [rows, columns]."""
        total: Float64s = self.busiest_ns + self.own_ns.sum(axis=0)
        return total

    @property
    def communication_ns(self) -> Float64s:
        """Links and the launching of collectives: [rows, columns]."""
        return self.link_ns + self.launch_ns


def row_times(
    terms: PhaseTerms,
    calibrations: ColumnCalibrations,
    *,
    slow: Float64s,
    layers: Float64s | float,
    expert_layers: Float64s | float,
    link_share: Float64s | float,
    collective_ns: Float64s,
) -> RowTimes:
    """`slow` [columns]; `layers` and `expert_layers` [rows, 1]: where overheads are added;
    `link_share` of peak and `collective_ns`: a rank's or the exchange's.
    """
    engine_ns = terms.engine_ns.copy()
    engine_ns[TENSOR] /= calibrations.values(lambda each: each.tensor_share)
    engine_ns[DMA] /= calibrations.values(lambda each: each.memory_share)
    busiest_ns = together_ns(engine_ns, calibrations.turn_taking)
    ramped_ns = np.maximum(busiest_ns, engine_ns[TENSOR] + terms.ramp_ns)
    present = busiest_ns > 0
    own_ns = np.array(
        (
            slow * (ramped_ns - busiest_ns),
            slow * terms.core_ns,
            terms.fill_drain_ns,
            terms.dma_start_ns,
            terms.launch_ns,
            calibrations.values(lambda each: each.layer_ns) * layers * present,
            calibrations.values(lambda each: each.expert_layer_ns) * expert_layers * present,
        )
    )
    return RowTimes(
        engine_ns=engine_ns,
        busiest_ns=slow * busiest_ns,
        own_ns=own_ns,
        link_ns=terms.link_ns / link_share + terms.latency_ns,
        launch_ns=terms.collectives * collective_ns,
    )


def together_ns(engine_ns: Float64s, turn_taking: float) -> Float64s:
    """Time of engines together: [engines, ...] -> [...]; see `Calibration.turn_taking`."""
    longest: Float64s = engine_ns.max(axis=0)
    if turn_taking == 0:
        return longest
    scale = np.where(longest > 0, longest, 1.0)  # so that no power leaves the range of numbers
    total: Float64s = ((engine_ns / scale) ** (1 / turn_taking)).sum(axis=0)
    return longest * total**turn_taking


class TimedStep:
    """The rows, segments and expert kinds of one counted step under one calibration."""

    def __init__(self, terms: StepTerms, calibration: Calibration) -> None:
        self.terms = terms
        self.calibration = calibration
        self.kind_runs = terms.runs_of_kind
        calibrations = ColumnCalibrations(calibrations=(calibration,))
        self.exchange_share = calibration.exchange_share.value
        self.rows = row_times(
            terms.rank,
            calibrations,
            slow=terms.rank_slow,
            layers=terms.layers[:, None],
            expert_layers=terms.expert_layers[:, None],
            link_share=calibrations.values(lambda each: each.link_share),
            collective_ns=calibrations.values(lambda each: each.collective_ns),
        )
        self.compute_ns = terms.times @ self.rows.compute_ns  # [segments, ranks]
        self.communication_ns = terms.times @ self.rows.communication_ns
        self.host_ns = host_ns(  # [overheads, ranks]
            calibrations,
            busy=terms.busy,
            requests=terms.requests,
            prefills=terms.prefills,
            launch_ns=terms.launch_ns,
        )
        self.compute_ns[-1] += self.host_ns.sum(axis=0)
        self.experts = (
            None
            if terms.experts is None
            else row_times(
                terms.experts,
                calibrations,
                slow=terms.slow,
                layers=0.0,
                expert_layers=0.0,
                link_share=calibrations.values(lambda each: each.exchange_share),
                collective_ns=calibrations.values(lambda each: each.exchange_ns),
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
        return np.array((combine_ns - spared / self.exchange_share, combine_ns))


def host_ns(
    calibrations: ColumnCalibrations,
    *,
    busy: Bools,
    requests: Float64s,
    prefills: Float64s,
    launch_ns: Float64s | float,
) -> Float64s:
    """Overheads of each rank's engine once per step: [step, request, prefill, graph; ranks]."""
    return np.array(
        (
            calibrations.values(lambda each: each.step_ns) * busy,
            calibrations.values(lambda each: each.request_ns) * requests,
            calibrations.values(lambda each: each.prefill_step_ns) * (prefills > 0),
            launch_ns * busy,
        )
    )
