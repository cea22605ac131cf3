"""The steps of a closed loop, counted once and timed under any calibration: decode over a grid of
batches, prefill of one prompt and of a full pass, and prompts that ride in decode steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import Calibration
from emulator.ultraserver.peak_expert_load import PeakExpertLoad
from emulator.ultraserver.step_columns import StepColumns
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_rows import ColumnCalibrations
from emulator.ultraserver.step_terms import StepTerms
from emulator.units import NS_PER_S
from serving.analysis.validate.closed_loop import StepTimes
from serving.analysis.validate.row_deployment import Pool, RowDeployment, Stack

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

ROUTING_EXPONENT: Final = 0.6
"""How unevenly the rows' tokens like experts: the one of rank r as r^-0.6, in another order in each
layer. *Assumed*: nothing in a row says it; over 8, 16 and 32 GPUs the busiest one then has 1.3, 1.6
and 2.4 times the mean of pairs.
"""
PASS_TOKENS_MAX: Final = 16_384
"""Prompt tokens of one prefill pass: chunked-prefill and max-num-tokens of the launch scripts."""


Requests = tuple[int, int, int]
"""Number of requests, new tokens of each, context of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoad:
    """A deployment and the users of its closed loop."""

    deployment: RowDeployment
    users: int


class CountedRows:
    """The counted steps of `loads`; `batches` [rows, grid] are the decode batches of a worker."""

    def __init__(self, loads: Sequence[RowLoad]) -> None:
        self.loads = tuple(loads)
        counter = _StepCounter()
        self._terms: list[StepTerms] = []
        self._row_of_step: list[int] = []
        self._inside: list[bool] = []  # [steps]: whether their exchanges leave no domain
        grids = [_grid(load) for load in loads]
        width = max(len(grid) for grid in grids)
        # Shorter grids repeat their last batch, which is never looked up beyond.
        self.batches: Float64s = np.array(
            [[*grid, *([grid[-1]] * (width - len(grid)))] for grid in grids], dtype=np.float64
        )
        self._decode: Int64s = np.zeros((len(loads), width), dtype=np.int64)
        self._solo: Int64s = np.zeros(len(loads), dtype=np.int64)
        self._full: Int64s = np.zeros_like(self._solo)
        self._alone: Int64s = np.zeros_like(self._solo)
        self._mixed: Int64s = np.zeros((2, len(loads)), dtype=np.int64)
        self.prompts_of_pass = np.array([_prompts(load.deployment) for load in loads], dtype=float)
        self.rides = np.array([load.deployment.rides for load in loads])
        for row, (load, grid) in enumerate(zip(loads, grids, strict=True)):
            self._count(counter, row, load, grid)
        self._columns = StepColumns(self._terms)
        stacks = [load.deployment.stack for load in loads]
        self.stacks: tuple[Stack, ...] = tuple(dict.fromkeys(stacks))
        place = {stack: index for index, stack in enumerate(self.stacks)}
        self.stack_of_row = np.array([place[stack] for stack in stacks], dtype=np.int64)
        stack_of_step = self.stack_of_row[np.array(self._row_of_step, dtype=np.int64)]
        self._calibration_of_step = 2 * stack_of_step + np.array(self._inside, dtype=np.int64)

    def _count(self, counter: "_StepCounter", row: int, load: RowLoad, grid: list[int]) -> None:
        deployment = load.deployment
        steps = [counter.decode(deployment, batch) for batch in grid]
        places = [self._add(row, terms) for terms in steps]
        self._decode[row] = places + [places[-1]] * (len(self._decode[row]) - len(places))
        many = _prompts(deployment)
        self._solo[row] = self._add(row, counter.prefill(deployment, 1))
        self._full[row] = self._add(row, counter.prefill(deployment, many))
        if deployment.rides:
            batch = grid[-1]
            self._alone[row] = self._add(row, counter.mixed(deployment, batch, 0))
            for place, prompts in enumerate((1, many)):
                mixed = counter.mixed(deployment, batch, prompts)
                self._mixed[place, row] = self._add(row, mixed)

    def _add(self, row: int, step: "_CountedStep") -> int:
        self._terms.append(step.terms)
        self._inside.append(step.inside)
        self._row_of_step.append(row)
        return len(self._terms) - 1

    def times(self, calibrations: Sequence[Calibration]) -> StepTimes:
        """Every step under its stack's calibration, one for each of `stacks`."""
        of_step = ColumnCalibrations(
            calibrations=[each for made in calibrations for each in (made, made.inside_a_domain())],
            of_column=self._calibration_of_step,
        )
        seconds = self._columns.durations_ns(of_step) / NS_PER_S
        solo_s, full_s = seconds[self._solo], seconds[self._full] / self.prompts_of_pass
        added = seconds[self._mixed] - seconds[self._alone]
        return StepTimes(
            decode_s=seconds[self._decode],
            solo_s=solo_s,
            full_s=full_s,
            solo_steal_s=np.where(self.rides, added[0], solo_s),
            full_steal_s=np.where(self.rides, added[1] / self.prompts_of_pass, full_s),
        )


def measured_peak_loads(costs: StepCostModel) -> PeakExpertLoad:
    """Of deployments that nothing balances, as those of the rows."""
    return PeakExpertLoad(costs, exponent=ROUTING_EXPONENT)


def _grid(load: RowLoad) -> list[int]:
    """Half octaves of each rank's sequences, up to users or cache; below one a rank, octaves."""
    deployment = load.deployment
    ranks = deployment.decode.partition.ranks
    workers = deployment.decode.workers if deployment.disaggregated else 1
    most = max(1, min(-(-load.users // workers), int(deployment.slots)))
    batches = [2**power for power in range(most.bit_length()) if 2**power < min(ranks, most)]
    octaves = range((most // ranks).bit_length())
    each = sorted({1, 2, *(2**power for power in octaves), *(3 * 2**power for power in octaves)})
    batches += [ranks * count for count in each if ranks * count < most]
    batches.append(ranks * -(-most // ranks) if most > ranks else most)
    return sorted(set(batches))


def _prompts(deployment: RowDeployment) -> int:
    """Prompts of a full pass: as its tokens allow, and at least one for every attention rank."""
    ranks = deployment.prefill.partition.ranks
    return max(ranks, int(PASS_TOKENS_MAX // deployment.prompt_tokens) // ranks * ranks)


class _CountedStep(NamedTuple):
    terms: StepTerms
    inside: bool


class _StepCounter:
    """Counts each different step once."""

    def __init__(self) -> None:
        self._costs: dict[object, tuple[StepCostModel, PeakExpertLoad | None]] = {}
        self._known: dict[object, _CountedStep] = {}

    def decode(self, deployment: RowDeployment, batch: int) -> _CountedStep:
        shape = (_decodes(deployment, batch),)
        return self._terms(deployment, deployment.decode, deployment.draft_tokens, shape)

    def prefill(self, deployment: RowDeployment, prompts: int) -> _CountedStep:
        return self._terms(deployment, deployment.prefill, 0, (_prefills(deployment, prompts),))

    def mixed(self, deployment: RowDeployment, batch: int, prompts: int) -> _CountedStep:
        """Decodes with riding prompts, possibly none, without drafts."""
        shape = (_decodes(deployment, batch), _prefills(deployment, prompts))
        return self._terms(deployment, deployment.decode, 0, shape)

    def _terms(
        self,
        deployment: RowDeployment,
        pool: Pool,
        drafts: int,
        shape: tuple[Requests, ...],
    ) -> _CountedStep:
        model = deployment.model
        where = (pool.system.name, pool.partition, model, drafts)
        if where not in self._costs:
            costs = StepCostModel(pool.system, model, pool.partition, draft_tokens=drafts)
            self._costs[where] = (costs, measured_peak_loads(costs) if model.experts else None)
        if (where, shape) not in self._known:
            costs, busiest = self._costs[where]
            batch = _batch(pool.partition.ranks, shape)
            terms = costs.terms(batch, None if busiest is None else busiest.loads(batch))
            assert terms is not None
            inside = costs.layout.exchanges_inside_a_domain
            self._known[where, shape] = _CountedStep(terms, inside)
        return self._known[where, shape]


def _decodes(deployment: RowDeployment, count: int) -> Requests:
    context_tokens = max(1, int(deployment.prompt_tokens + deployment.output_tokens / 2))
    return count, 1, context_tokens


def _prefills(deployment: RowDeployment, count: int) -> Requests:
    return count, max(1, int(deployment.prompt_tokens)), 0


def _batch(ranks: int, shape: tuple[Requests, ...]) -> StepBatch:
    """Requests of each kind in turns over the ranks, each with one row of logits."""
    rank, new, context = [], [], []
    for count, new_tokens, context_tokens in shape:
        rank.append(np.arange(count, dtype=np.int64) % ranks)
        new.append(np.full(count, new_tokens, dtype=np.int64))
        context.append(np.full(count, context_tokens, dtype=np.int64))
    of_rank = np.concatenate(rank)
    return StepBatch(
        ranks=ranks,
        rank=of_rank,
        new_tokens=np.concatenate(new),
        context_tokens=np.concatenate(context),
        logit_rows=np.bincount(of_rank, minlength=ranks),
    )
