"""Cost of a step: nanoseconds, busy engines, watts and joules.

The one place where counted work, the roofline, the fabric and power meet. Pure: the same batch
costs the same. Compiled kernels count and time a batch (`step_kernel`); `step_counter` and
`step_time` do so in arrays, for fits and what-ifs, which change counts or calibrations.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.errors import ConfigError
from emulator.fabric.all_to_all import AllToAll
from emulator.power.draw import throttle_factor, wanted_watts
from emulator.power.system_power import SystemPower
from emulator.specs.batch import StepBatch
from emulator.specs.calibration import Calibration
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.model import ModelSpec
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition, check_partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.product_rate import check_formats, flops_per_ns, products_by_rate
from emulator.timing.rank_totals import prefill_requests
from emulator.timing.roofline import ENGINES
from emulator.timing.speculation import draft_module, draft_passes, verified
from emulator.ultraserver.machine_layout import MachineLayout
from emulator.ultraserver.step_counter import StepCounter
from emulator.ultraserver.step_terms import StepTerms
from emulator.ultraserver.step_work import StepWork
from emulator.units import NS_PER_S

if TYPE_CHECKING:
    from emulator.ultraserver.cost_kernel import StepTables
    from emulator.ultraserver.step_kernel import StepKernels

COLLECTIVES: Final = "collectives"
ENGINE_NAMES: Final = (*ENGINES, COLLECTIVES)
DRAFT_TOKENS_MAX: Final = 16  # no stack drafts more in one line of guesses


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCost:
    """One step of all ranks; it lasts as long as its slowest group of chips.

    `rank_ns`: each rank's own time, waiting only for its group's experts; `engine_ns`: busy time of
    each engine, by name; `chip_watts`: averages over the step; `parts_ns`: of the slowest group,
    summing to the duration but for its rounding; `bound`: the engine that each part waits for;
    `flops`: of matrix products; bytes: really moved by HBM and links; `dispatched_bytes`: rows for
    other chips' experts.
    """

    duration_ns: int
    rank_ns: Int64s  # [ranks]
    engine_ns: dict[str, Int64s]  # each [chips]
    chip_watts: Float64s  # [chips]
    chip_joules: float
    parts_ns: dict[str, float]
    bound: dict[str, str]
    flops: Float64s  # [chips]
    hbm_bytes: Float64s  # [chips]
    link_bytes: Float64s  # [chips]
    dispatched_bytes: Float64s  # [chips]


class StepCostModel:
    """The cost of steps of one model on one partition of a system.

    Args:
        placement: of the model's experts, in blocks of `expert_tp` chips; by default even.
        distribution: of tokens over experts, without counted loads; by default uniform.
        all_to_all: the fabric with its faults; by default whole.
        chips_up: bool[chips] that take part; a rank needs all of its chips, else it runs not even a
            dummy token. Every chip goes on drawing power.
        physical: int64[chips], the system's chip at each position, negative if vacant; by default
            those from `first_chip` on.
        calibration: shares of peak rates, and overheads; by default those fitted for the chip, as
            in every command.
        draft_tokens: guesses of each decoding request per step, unless its batch counts them.
        draft_module: a layer of the model's makes them, after each step; else they are found for
            nothing, or made by `draft_model`, divided over the same chips.

    Immutable: `with_placement` and `with_machine` make another one. Raises ConfigError for a
    partition that does not fit the system or the model's heads, weights in a format that the chip
    cannot hold, or too many guesses.
    """

    def __init__(  # noqa: PLR0913  a keyword for each thing in which machines differ
        self,
        system: SystemSpec,
        model: ModelSpec,
        partition: Partition,
        *,
        placement: ExpertPlacement | None = None,
        distribution: ExpertDistribution | None = None,
        all_to_all: AllToAll | None = None,
        chips_up: Bools | None = None,
        physical: Int64s | None = None,
        calibration: Calibration | None = None,
        overlap: Overlap = Overlap.NONE,
        draft_tokens: int = 0,
        draft_module: bool = True,
        draft_model: ModelSpec | None = None,
    ) -> None:
        check_partition(partition, system, {model.name: (model.heads, model.heads)})
        check_formats(model, system.chip)
        if not 0 <= draft_tokens <= DRAFT_TOKENS_MAX:
            raise ConfigError("draft_tokens", draft_tokens, f"from 0 to {DRAFT_TOKENS_MAX}")
        self.system = system
        self._power = SystemPower(system)
        self._cap_watts = self._power.chip_cap_watts
        self.model = model
        self.partition = partition
        self._draft_model = draft_model
        if draft_model is not None:
            heads = (draft_model.heads, draft_model.heads)
            check_partition(partition, system, {draft_model.name: heads})
            check_formats(draft_model, system.chip)
        self._drafts_computed = draft_tokens > 0 and (draft_module or draft_model is not None)
        self.given_calibration = calibration or calibration_for(system.chip.name)
        self.overlap = overlap
        self.draft_tokens = draft_tokens
        chips, first = partition.chips, partition.first_chip
        self._rates = flops_per_ns(system.chip, model.dtype)
        self._even = np.ones(chips)  # no chip is slow
        self._count_on(
            MachineLayout(
                system=system,
                model=model,
                partition=partition,
                placement=placement
                or _even(
                    model.moe_layers, model.experts, chips // partition.expert_tp, partition.ep
                ),
                distribution=distribution or ExpertDistribution.uniform(model),
                all_to_all=all_to_all or AllToAll(system, chips, first_chip=first),
                physical=_at_home(partition, physical),
                chips_up=np.ones(chips, dtype=np.bool_) if chips_up is None else chips_up,
                stores_slower=self.given_calibration.stores_slower,
            )
        )

    def of_work(self, calibration: Calibration) -> Calibration:
        """Another calibration with the overheads of this model and its drafts, and the exchanges
        of this machine.
        """
        factors = self.overhead_factors
        inside = self.layout.exchanges_inside_a_domain
        return (calibration.inside_a_domain() if inside else calibration).of_work(
            fp4="fp4_overhead" in factors, drafts="draft_overhead" in factors
        )

    @property
    def overhead_factors(self) -> tuple[str, ...]:
        """The calibration's constants that multiply the engine's overheads."""
        narrow = self.model.experts > 0 and self.model.expert_format.bits_per_element <= 4
        named = (("fp4_overhead", narrow), ("draft_overhead", self._drafts_computed))
        return tuple(name for name, there in named if there)

    def _count_on(self, layout: MachineLayout) -> None:
        self.layout = layout
        self.calibration = self.of_work(self.given_calibration)
        self._counter = StepCounter(layout)
        self._drafting = self._drafts() if self._drafts_computed else None
        self._made: StepKernels | None = None

    def _drafts(self) -> tuple[MachineLayout, StepCounter]:
        """Experts of the draft module are placed and picked as the last layer's; those of a draft
        model evenly.
        """
        if self._draft_model is not None:
            return self._draft_model_on_chips(self._draft_model)
        placement, distribution = self.layout.placement, self.layout.distribution
        last = ExpertPlacement(
            experts=placement.experts, ep=placement.ep, expert_of_slot=placement.expert_of_slot[-1:]
        )
        picked = ExpertDistribution(
            name=distribution.name,
            experts_per_token=distribution.experts_per_token,
            probability=distribution.probability[-1:],
            odds=distribution.odds[-1:],
        )
        layout = replace(
            self.layout, model=draft_module(self.model), placement=last, distribution=picked
        )
        return layout, StepCounter(layout, draft=True)

    def _draft_model_on_chips(self, model: ModelSpec) -> tuple[MachineLayout, StepCounter]:
        partition = self.partition
        groups = partition.chips // partition.expert_tp
        layout = replace(
            self.layout,
            model=model,
            placement=_even(model.moe_layers, model.experts, groups, partition.ep),
            distribution=ExpertDistribution.uniform(model),
        )
        return layout, StepCounter(layout)

    @property
    def routing(self) -> str:
        """The routing assumed without counted loads."""
        if not self.model.experts:
            return "none (dense)"
        return f"{self.layout.distribution.name} (expected value)"

    def with_placement(self, placement: ExpertPlacement) -> Self:
        """The same with experts in other slots."""
        return self._on(replace(self.layout, placement=placement))

    def with_machine(
        self, *, all_to_all: AllToAll, chips_up: Bools, physical: Int64s | None = None
    ) -> Self:
        """The same with another fabric and other chips: failed or replaced."""
        seated = _at_home(self.partition, physical)
        return self._on(
            replace(self.layout, all_to_all=all_to_all, chips_up=chips_up, physical=seated)
        )

    def _on(self, layout: MachineLayout) -> Self:
        other = copy(self)
        other._count_on(layout)
        return other

    def cost(
        self,
        batch: StepBatch,
        loads: ExpertLoads | None = None,
        slow_factor: Float64s | None = None,
    ) -> StepCost:
        """Cost of the step that runs `batch`; a step without requests takes no time.

        `loads`: counted expert loads, expected ones by default; `slow_factor` [chips]: multiplies
        engines' times. Raises ValueError for another number of ranks, chips or layers.
        """
        slow = self._checked_slow(batch, slow_factor)
        if not len(batch.rank):
            return self._idle_cost()
        step = self._kernels.step(batch, loads, slow, self.overlap)
        rounded = step.rounded
        return StepCost(
            duration_ns=rounded.duration_ns,
            rank_ns=rounded.rank_ns,
            engine_ns=dict(zip(ENGINE_NAMES, rounded.busy_ns, strict=True)),
            chip_watts=rounded.chip_watts,
            chip_joules=rounded.watts * rounded.duration_ns / NS_PER_S,
            parts_ns=step.parts_ns,
            bound=step.bound,
            flops=rounded.flops,
            hbm_bytes=rounded.hbm_bytes,
            link_bytes=rounded.link_bytes,
            dispatched_bytes=rounded.dispatched_bytes,
        )

    def step_tables(self, batch: StepBatch | None = None) -> "StepTables | None":
        """What a compiled loop costs steps from, as `cost` with expected loads and even chips does.

        The tables know the tokens of `batch`. None where a step needs more: drafts, an overlap, an
        exchange over another fabric.
        """
        if self.overlap is not Overlap.NONE:
            return None
        return self._kernels.step_tables(self._even, batch)

    def costs(self, batches: Sequence[StepBatch]) -> list[StepCost]:
        """`cost` of several steps with expected loads.

        Raises ValueError as `cost`.
        """
        if batches:
            self._kernels.learn(batches)
        return [self.cost(batch) for batch in batches]

    @property
    def _kernels(self) -> "StepKernels":
        """Those of this machine, made when a step is costed: Numba takes long to import."""
        if self._made is None:
            from emulator.ultraserver.step_kernel import step_kernels  # noqa: PLC0415

            self._made = step_kernels(
                self.layout,
                self._counter,
                drafting=self._drafting,
                calibration=self.calibration,
                draft_tokens=self.draft_tokens,
                cap_watts=self._cap_watts,
            )
        return self._made

    def _checked_slow(self, batch: StepBatch, slow_factor: Float64s | None) -> Float64s:
        self._check_ranks(batch)
        slow = self._even if slow_factor is None else slow_factor
        if slow.shape != (self.partition.chips,):
            raise ValueError(f"{slow.shape} slow factors for {self.partition.chips} chips")
        return np.ascontiguousarray(slow)

    def _check_ranks(self, batch: StepBatch) -> None:
        if batch.ranks != self.partition.ranks:
            raise ValueError(f"{batch.ranks} ranks in a batch for {self.partition.ranks}")

    def terms(
        self,
        batch: StepBatch,
        loads: ExpertLoads | None = None,
        slow_factor: Float64s | None = None,
    ) -> StepTerms | None:
        """The terms that `cost` times; None for a step without requests.

        Arguments and errors are those of `cost`. Half batches are counted where the model's overlap
        is of two batches.
        """
        slow = self._checked_slow(batch, slow_factor)
        if not len(batch.rank):
            return None
        two_batch = self.overlap is Overlap.TWO_BATCH
        if not self.draft_tokens:
            return self._counter.terms(batch, loads, slow, two_batch=two_batch)
        drafts: tuple[StepTerms, ...] = ()
        if self._drafting is not None:
            drafts = tuple(
                self._drafting[1].terms(each, None, slow, two_batch=two_batch)
                for each in draft_passes(batch, self.draft_tokens)
            )
        checked = verified(batch, self.draft_tokens)
        terms = self._counter.terms(checked, loads, slow, drafts=drafts, two_batch=two_batch)
        return replace(terms, prefills=prefill_requests(batch))  # a decode's guesses are none

    def throttle(self, work: StepWork, free_ns: float) -> float:
        """Stretch, at least 1, of a step of `free_ns` that keeps every chip within its power."""
        return self._throttle(self.wanted_watts(work, free_ns))

    def _throttle(self, wanted: Float64s) -> float:
        return float(throttle_factor(self.system.chip, wanted, cap_watts=self._cap_watts).max())

    def wanted_watts(self, work: StepWork, free_ns: float) -> Float64s:
        """Watts of each chip if the step took `free_ns`, [chips]."""
        return wanted_watts(self.system.chip, self._busy_shares(work, free_ns))

    def _busy_shares(self, work: StepWork, duration_ns: float) -> dict[str, Float64s]:
        """Engines' shares of the step at full rate, each [chips], for power.

        The matrix engine's are of real flops, by format: partial rows and tiles draw nothing
        (assumed: their multipliers get zeros).
        """
        shares = dict(zip(ENGINES, work.engine_ns / duration_ns, strict=True))
        del shares["tensor"]
        for rate, dtype in products_by_rate(self.model.dtype).items():
            name = f"tensor_{dtype}"
            share = work.flops[rate] / self._rates[rate] / duration_ns
            shares[name] = shares[name] + share if name in shares else share
        shares[COLLECTIVES] = work.link_ns / duration_ns
        return shares

    def _idle_cost(self) -> StepCost:
        chips = self.partition.chips
        nothing = np.zeros(chips)
        return StepCost(
            duration_ns=0,
            rank_ns=np.zeros(self.partition.ranks, dtype=np.int64),
            engine_ns={name: np.zeros(chips, dtype=np.int64) for name in (*ENGINES, COLLECTIVES)},
            chip_watts=np.full(chips, self.idle_chip_watts),
            chip_joules=0.0,
            parts_ns={},
            bound={},
            flops=nothing,
            hbm_bytes=nothing,
            link_bytes=nothing,
            dispatched_bytes=nothing,
        )

    @property
    def idle_chip_watts(self) -> float:
        """Idle watts of one chip."""
        return self.system.chip.idle_watts.value

    @property
    def provisioned_watts(self) -> float:
        """The partition's share of the system's power budget, by its chips and spares; no PUE."""
        share = (self.partition.chips + self.partition.spares) / self.system.chips.value
        return self.system.provisioned_watts.value * share

    def facility_watts(self, chip_watts_sum: float) -> float:
        """Watts at the meter, on the design day, when chips and spares draw `chip_watts_sum`."""
        chips = self.partition.chips + self.partition.spares
        return self._power.facility_watts(chip_watts_sum, chips=chips).total_watts


@lru_cache(maxsize=1)
def _even(layers: int, experts: int, chips: int, ep: int) -> ExpertPlacement:
    """One for models that follow each other on the same chips, whose tables are made of it once."""
    return ExpertPlacement.even(layers=layers, experts=experts, chips=chips, ep=ep)


def _at_home(partition: Partition, physical: Int64s | None) -> Int64s:
    """`physical`, with the partition's own chip at vacant positions or by default."""
    home = partition.first_chip + np.arange(partition.chips, dtype=np.int64)
    return home if physical is None else np.where(physical < 0, home, physical)
