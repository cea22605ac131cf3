"""One model's steps on one machine, counted and timed by compiled kernels.

Holds the tables that they read. `StepCounter` and `step_time` are the same in arrays, for whoever
changes terms or calibrations; tests hold the two against each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final, TypeVar

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.power.draw import full_rate_watts, limit_watts
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import Calibration
from emulator.specs.chip import ChipSpec
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.overlap import Overlap
from emulator.timing.product_rate import flops_per_ns, products_by_rate
from emulator.timing.rank_totals import prefill_requests
from emulator.timing.roofline import ENGINES
from emulator.timing.speculation import draft_passes, verified
from emulator.ultraserver import cost_kernel, work_kernel
from emulator.ultraserver.cost_kernel import StepTables
from emulator.ultraserver.count_kernel import Batch, CountTables, GivenExperts, StepCounts
from emulator.ultraserver.count_tables import (
    blocks_around,
    exchange_tables,
    expert_tables,
    head_tables,
    nothing_carried,
    rank_tables,
)
from emulator.ultraserver.half_batches import half_batches, half_loads
from emulator.ultraserver.machine_layout import MachineLayout
from emulator.ultraserver.pass_kernel import Passed
from emulator.ultraserver.power_kernel import PowerTables, Rounded
from emulator.ultraserver.step_counter import StepCounter
from emulator.ultraserver.step_parts import (
    COLLECTIVE_LAUNCH,
    DISPATCH_COMBINE,
    EXPERTS,
    THROTTLE,
    TP_COLLECTIVES,
)
from emulator.ultraserver.step_rows import HOST_OVERHEADS, OWN_OVERHEADS
from emulator.ultraserver.step_time import DRAFT, without_host
from emulator.ultraserver.time_kernel import TimeTables

T = TypeVar("T")

_LEARNING: Final = Lock()
"""Engines of one model may run in several threads; models are pickled, and have no lock."""

# In the order of the kernel's parts.
_PARTS_AFTER_EXPERTS: Final = (
    *OWN_OVERHEADS,
    *HOST_OVERHEADS,
    TP_COLLECTIVES,
    COLLECTIVE_LAUNCH,
    DISPATCH_COMBINE,
)


class StepKernel:
    """Steps that `counter` counts, under one calibration."""

    def __init__(
        self, counter: StepCounter, layout: MachineLayout, calibration: Calibration
    ) -> None:
        self._counter = counter
        ranks, self._store = rank_tables(
            counter.phases, layout, ranks_per_domain=counter.ranks_per_domain
        )
        chips = layout.partition.chips
        exchange = exchange_tables(counter.experts, layout)
        self._carries = exchange is not None
        experts, column_of = expert_tables(counter.experts, layout)
        self._tables = CountTables(
            heads=head_tables(layout.model, counter.phases.shape),
            ranks=ranks,
            experts=experts,
            exchange=nothing_carried(layout.partition) if exchange is None else exchange,
        )
        self._time = _time_tables(counter, layout, calibration)
        self._tensor_share_beside = calibration.beside_exchanges().tensor_share.value
        layers = np.arange(layout.model.moe_layers)
        self._time_by_layer = self._time._replace(
            kind_of_layer=layers, kind_runs=np.ones(len(layers))
        )
        self._column_by_layer = np.arange(len(layers) * chips).reshape(-1, chips)
        self._given = _nothing_given(column_of, columns=len(experts.group_of))
        self._tp = layout.partition.tp
        self.parts = tuple(dict.fromkeys(counter.parts))
        self.has_experts = counter.experts is not None

    def passed(
        self,
        batch: StepBatch,
        loads: ExpertLoads | None,
        slow: Float64s,
        overlap: Overlap,
        *,
        prefills: Float64s | None = None,
    ) -> Passed:
        """One pass over `batch`, whose ranks compute prompts as `prefills` says, or as it shows.

        Raises ValueError as `StepCostModel.cost`.
        """
        tables = self._time if loads is None else self._time_by_layer
        counted = self._counted(batch, loads)
        if prefills is not None:
            counted = _with_prefills(counted, prefills)
        if overlap is Overlap.FULL:
            return cost_kernel.time_overlapped(tables, counted, slow)
        exchanges = overlap is Overlap.TWO_BATCH and self._counter.exchanges
        halves = half_batches(batch) if exchanges else None
        if halves is None:
            return cost_kernel.time_alone(tables, counted, slow)
        half = None if loads is None else half_loads(loads)
        pair = (self._counted(halves[0], half), self._counted(halves[1], half))
        if counted.ranks.of.prefills.any():
            tables = tables._replace(tensor_share=self._tensor_share_beside)
        return cost_kernel.time_halves(tables, counted, pair, slow)

    def alone(
        self, batch: StepBatch, loads: ExpertLoads | None, slow: Float64s, power: PowerTables
    ) -> tuple[Rounded, Float64s, Int64s]:
        """`passed` and rounded without overlap, in one: the parts and bounds are those of `Passed`.

        Raises ValueError as `StepCostModel.cost`.
        """
        time = self._time if loads is None else self._time_by_layer
        return self._from_tables(
            batch,
            loads,
            lambda given, arrays: cost_kernel.step(
                (self._tables, time, power), given, arrays, slow
            ),
        )

    def step_tables(self, power: PowerTables, slow: Float64s) -> StepTables | None:
        """What `cost_kernel.drawn` needs of expected loads; None where it needs more each step, or
        a chip that takes part has no links to one that needs its tokens.
        """
        takes_part = np.repeat(self._tables.ranks.up, self._tp)
        stuck = (self._tables.exchange.stuck & takes_part).any()
        if self.has_experts and (not self._carries or stuck):
            return None
        return StepTables(tables=(self._tables, self._time, power), given=self._given, slow=slow)

    def learn(self, batches: Sequence[StepBatch]) -> None:
        """Make tables know the tokens of `batches`."""
        tokens = np.concatenate([batch.tokens_by_rank() for batch in batches])
        self._learn(tokens, np.concatenate([batch.logit_rows for batch in batches]))

    def learn_around(self, batch: StepBatch) -> None:
        """Make tables know the tokens of `batch`, and of steps like it."""
        self._learn(blocks_around(batch.tokens_by_rank()), blocks_around(batch.logit_rows))

    def _learn(self, tokens: Int64s, logit_rows: Int64s) -> None:
        with _LEARNING:
            self._store.learn(tokens, logit_rows)
            ranks = self._tables.ranks._replace(kinds=self._store.tables)
            self._tables = self._tables._replace(ranks=ranks)

    def _counted(self, batch: StepBatch, loads: ExpertLoads | None) -> StepCounts:
        return self._from_tables(
            batch, loads, lambda given, arrays: cost_kernel.count(self._tables, given, arrays)
        )

    def _from_tables(
        self,
        batch: StepBatch,
        loads: ExpertLoads | None,
        function: Callable[[GivenExperts, Batch], T],
    ) -> T:
        """What `function` makes of `batch`, once the tables know its tokens."""
        given = self._given if loads is None and self._carries else self._links(batch, loads)
        whole = np.ascontiguousarray  # a kernel for arrays with gaps would be compiled anew
        rows = whole(batch.rank), whole(batch.new_tokens), whole(batch.context_tokens)
        arrays = (*rows, whole(batch.logit_rows))
        try:
            return function(given, arrays)
        except LookupError:
            self.learn_around(batch)
            return self._from_tables(batch, loads, function)
        except ConnectionError:
            self._links(batch, None)  # its error says which chips
            raise

    def _links(self, batch: StepBatch, loads: ExpertLoads | None) -> GivenExperts:
        """Counted loads, and exchanges that are timed in Python."""
        experts = self._counter.experts
        if experts is None:
            return self._given
        given = self._given
        if loads is None:
            tokens = np.repeat(batch.tokens_by_rank() / self._tp, self._tp)
            link_ns, latency_ns, link_bytes = experts.links(tokens)
        else:
            link_ns, latency_ns, link_bytes = experts.counted_links(loads)
            given = given._replace(
                has_loads=True,
                pairs=loads.pairs.astype(np.float64).ravel(),
                distinct=loads.distinct.astype(np.float64).ravel(),
                column_of=self._column_by_layer,
            )
        return given._replace(
            has_links=True,
            link_ns=np.ascontiguousarray(link_ns),
            rest_ns=np.ascontiguousarray(latency_ns[:, 0]),
            link_bytes=np.ascontiguousarray(link_bytes),
            collectives=np.where(link_ns.max(axis=1) + latency_ns[:, 0] > 0, 1.0, 0.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelStep:
    """A step's cost, but for what follows from it; see `StepCost`."""

    rounded: Rounded
    parts_ns: dict[str, float]
    bound: dict[str, str]


class StepKernels:
    """Whole steps: a pass over what is verified, those of a draft module, and their power."""

    def __init__(
        self, whole: StepKernel, drafts: StepKernel | None, power: PowerTables, *, draft_tokens: int
    ) -> None:
        self._whole = whole
        self._drafts = drafts
        self._power = power
        self._draft_tokens = draft_tokens
        has_experts = EXPERTS if whole.has_experts else ""
        self._bound_names = (*whole.parts, has_experts)
        draft = DRAFT if drafts is not None else ""
        self._names = (*self._bound_names, *_PARTS_AFTER_EXPERTS, THROTTLE, draft)

    def step_tables(self, slow: Float64s, batch: StepBatch | None) -> StepTables | None:
        """Arguments of `cost_kernel.drawn`; see `StepCostModel.step_tables`."""
        if self._draft_tokens:
            return None
        if batch is not None:
            self._whole.learn_around(batch)
        return self._whole.step_tables(self._power, slow)

    def learn(self, batches: Sequence[StepBatch]) -> None:
        """Make tables know the tokens of `batches` at once, before a step asks for more."""
        self._whole.learn(batches)

    def step(
        self, batch: StepBatch, loads: ExpertLoads | None, slow: Float64s, overlap: Overlap
    ) -> KernelStep:
        """The step of `batch`, which has requests; raises ValueError as `StepCostModel.cost`."""
        if not self._draft_tokens and overlap is Overlap.NONE:
            rounded, parts_ns, bounds = self._whole.alone(batch, loads, slow, self._power)
        else:
            passed = (
                self._with_drafts(batch, loads, slow, overlap)
                if self._draft_tokens
                else self._whole.passed(batch, loads, slow, overlap)
            )
            parts_ns, bounds = passed.parts_ns, passed.bound
            rounded = cost_kernel.rounded(
                self._power, passed.duration_ns, passed.rank_ns, passed.work, slow
            )
        parts = dict(zip(self._names, parts_ns.tolist(), strict=True))
        parts[THROTTLE] = rounded.throttled_ns
        parts.pop("", None)
        bound = zip(self._bound_names, bounds.tolist(), strict=True)
        return KernelStep(
            rounded=rounded,
            parts_ns=parts,
            bound={name: ENGINES[engine] for name, engine in bound if engine >= 0},
        )

    def _with_drafts(
        self, batch: StepBatch, loads: ExpertLoads | None, slow: Float64s, overlap: Overlap
    ) -> Passed:
        checked = verified(batch, self._draft_tokens)
        prefills = prefill_requests(batch)  # a decode's guesses are none
        own = self._whole.passed(checked, loads, slow, overlap, prefills=prefills)
        if self._drafts is None:
            return own
        further = [
            self._drafts.passed(each, None, slow, overlap)
            for each in draft_passes(batch, self._draft_tokens)
        ]
        parts_ns = own.parts_ns.copy()
        parts_ns[-1] = sum(each.duration_ns for each in further)
        return own._replace(
            duration_ns=own.duration_ns + parts_ns[-1],
            rank_ns=own.rank_ns + np.sum([each.rank_ns for each in further], axis=0),
            parts_ns=parts_ns,
            work=np.sum([own.work, *(each.work for each in further)], axis=0),
        )


def step_kernels(
    layout: MachineLayout,
    counter: StepCounter,
    *,
    drafting: tuple[MachineLayout, StepCounter] | None,
    calibration: Calibration,
    draft_tokens: int,
    cap_watts: float | None,
) -> StepKernels:
    """Those of a machine; `drafting` is what counts the passes of its draft module.

    Raises ConfigError for a power cap at which a chip cannot work.
    """
    return StepKernels(
        StepKernel(counter, layout, calibration),
        None if drafting is None else StepKernel(*drafting[::-1], without_host(calibration)),
        _power_tables(layout.system.chip, layout.model.dtype, cap_watts),
        draft_tokens=draft_tokens,
    )


def _power_tables(chip: ChipSpec, dtype: str, cap_watts: float | None) -> PowerTables:
    """Products draw by the format that they run in, as `StepCostModel.wanted_watts` says."""
    by_name = full_rate_watts(chip)
    watts = np.zeros(work_kernel.WORK_COLUMNS)
    for place, engine in enumerate(ENGINES):
        watts[place] = 0.0 if engine == "tensor" else by_name[engine]
    watts[work_kernel.WORK_LINK_NS] = by_name["collectives"]
    rates = flops_per_ns(chip, dtype)
    for rate, product in products_by_rate(dtype).items():
        watts[work_kernel.WORK_FLOPS + rate] = by_name[f"tensor_{product}"] / rates[rate]
    idle_watts, limit = chip.idle_watts.value, limit_watts(chip, cap_watts)
    return PowerTables(watts=watts, idle_watts=float(idle_watts), cap_watts=float(limit))


def _with_prefills(counted: StepCounts, prefills: Float64s) -> StepCounts:
    of_ranks = counted.ranks.of._replace(prefills=prefills)
    return counted._replace(ranks=counted.ranks._replace(of=of_ranks))


def _nothing_given(column_of: Int64s, *, columns: int) -> GivenExperts:
    """Expected loads and exchanges over lanes."""
    by_chip, by_kind = np.zeros(column_of.shape), np.zeros(len(column_of))
    return GivenExperts(
        has_loads=False,
        pairs=np.zeros(columns),
        distinct=np.zeros(columns),
        column_of=column_of,
        has_links=False,
        link_ns=by_chip,
        rest_ns=by_kind,
        link_bytes=by_chip,
        collectives=by_kind,
    )


def _time_tables(
    counter: StepCounter, layout: MachineLayout, calibration: Calibration
) -> TimeTables:
    names = list(dict.fromkeys(counter.parts))
    kinds = counter.kind_of_layer
    # A whole number would compile the kernels again.
    figures = {label: float(figure.value) for label, figure in calibration.figures()}
    return TimeTables(
        **{label: value for label, value in figures.items() if label in TimeTables._fields},
        launch_ns=counter.launch_ns,
        layers=counter.layers,
        expert_layers=counter.expert_layers,
        part_of_row=np.array([names.index(part) for part in counter.parts]),
        row_parts=len(names),
        times=counter.phases.times,
        runs=counter.runs,
        segment_of_layer=counter.segment_of_layer,
        kind_of_layer=kinds,
        kind_runs=np.bincount(kinds).astype(np.float64),
        dispatch_share=counter.dispatch_share,
        tp=layout.partition.tp,
        ranks_per_domain=counter.ranks_per_domain,
    )
