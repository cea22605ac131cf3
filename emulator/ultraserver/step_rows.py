"""A counted step's rows under a calibration: peak times divided by shares, overheads added."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from emulator.specs.calibration import Calibration
from emulator.timing.roofline import DMA, TENSOR
from emulator.ultraserver.step_terms import PhaseTerms, StepTerms

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
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
class CalibrationValues:
    """What a calibration says, as numbers: one for all columns, or [columns]."""

    tensor_share: Float64s | float
    memory_share: Float64s | float
    link_share: Float64s | float
    exchange_share: Float64s | float
    collective_ns: Float64s | float
    step_ns: Float64s | float
    layer_ns: Float64s | float
    expert_layer_ns: Float64s | float
    request_ns: Float64s | float
    prefill_step_ns: Float64s | float
    turn_taking: float

    @classmethod
    def of(cls, calibration: Calibration) -> Self:
        """The same for all columns."""
        return cls(**{each.name: getattr(calibration, each.name).value for each in fields(cls)})

    @classmethod
    def by_column(cls, calibrations: Sequence[Calibration]) -> Self:
        """One calibration a column; raises ValueError unless engines overlap alike in all."""
        values = {
            each.name: np.array([getattr(one, each.name).value for one in calibrations])
            for each in fields(cls)
        }
        turns = set(values.pop("turn_taking").tolist())
        if len(turns) != 1:
            raise ValueError(f"columns whose engines take turns alike, not {sorted(turns)}")
        return cls(turn_taking=turns.pop(), **values)

    def taken(self, columns: Int64s) -> Self:
        """Those of `columns`, where there is one for each."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return type(self)(
            **{
                name: value if isinstance(value, float) else value[columns]
                for name, value in values.items()
            }
        )


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


def row_times(
    terms: PhaseTerms,
    values: CalibrationValues,
    *,
    slow: Float64s,
    layers: Float64s | float,
    expert_layers: Float64s | float,
    link_share: Float64s | float,
) -> RowTimes:
    """`slow` is [columns]; `layers` and `expert_layers` [rows, 1] say where overheads are added;
    `link_share` is what the links of these rows reach: those of a rank, or of the exchange.
    """
    engine_ns = terms.engine_ns.copy()
    engine_ns[TENSOR] /= values.tensor_share
    engine_ns[DMA] /= values.memory_share
    busiest_ns = together_ns(engine_ns, values.turn_taking)
    ramped_ns = np.maximum(busiest_ns, engine_ns[TENSOR] + terms.ramp_ns)
    present = busiest_ns > 0
    own_ns = np.array(
        (
            slow * (ramped_ns - busiest_ns),
            slow * terms.core_ns,
            terms.fill_drain_ns,
            terms.dma_start_ns,
            terms.launch_ns,
            values.layer_ns * layers * present,
            values.expert_layer_ns * expert_layers * present,
        )
    )
    return RowTimes(
        engine_ns=engine_ns,
        busiest_ns=slow * busiest_ns,
        own_ns=own_ns,
        link_ns=terms.link_ns / link_share + terms.latency_ns,
        launch_ns=terms.collectives * values.collective_ns,
    )


def together_ns(engine_ns: Float64s, turn_taking: float) -> Float64s:
    """How long engines take together: [engines, ...] -> [...]; see `Calibration.turn_taking`."""
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
        self.kind_runs = terms.runs_of_kind
        values = CalibrationValues.of(calibration)
        self.exchange_share = calibration.exchange_share.value
        self.rows = row_times(
            terms.rank,
            values,
            slow=terms.rank_slow,
            layers=terms.layers[:, None],
            expert_layers=terms.expert_layers[:, None],
            link_share=values.link_share,
        )
        self.compute_ns = terms.times @ self.rows.compute_ns  # [segments, ranks]
        self.communication_ns = terms.times @ self.rows.communication_ns
        self.host_ns = host_ns(  # [overheads, ranks]
            values,
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
                values,
                slow=terms.slow,
                layers=0.0,
                expert_layers=0.0,
                link_share=values.exchange_share,
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
    values: CalibrationValues,
    *,
    busy: Bools,
    requests: Float64s,
    prefills: Float64s,
    launch_ns: Float64s | float,
) -> Float64s:
    """Overheads of each rank's engine once per step: [step, request, prefill, graph; ranks]."""
    return np.array(
        (
            values.step_ns * busy,
            values.request_ns * requests,
            values.prefill_step_ns * (prefills > 0),
            launch_ns * busy,
        )
    )
