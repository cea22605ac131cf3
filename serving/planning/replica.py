"""One replica's steps in steady state: what decoding, mixed steps and prompts cost."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from emulator.model import (
    ExpertDistribution,
    ModelSpec,
    StepBatch,
    StepCostModel,
    SystemPower,
    SystemSpec,
)
from emulator.specs.rack_power import Season
from emulator.units import NS_PER_S
from serving.planning.operating_point import OperatingPoint
from serving.planning.partitions import Candidate
from serving.planning.request_shape import RequestShape
from serving.planning.step_assumptions import StepAssumptions
from serving.planning.step_batches import prefill_steps, prompt_chunks, steady_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStep:
    """A step of a steady state, averaged: its time, and what all chips of a replica draw."""

    duration_ns: float
    chip_watts_sum: float


class Replica:
    """The cost of a candidate's steps, where its chips lie the farthest apart.

    All replicas are taken to be as slow as that one.
    """

    def __init__(
        self,
        system: SystemSpec,
        model: ModelSpec,
        candidate: Candidate,
        *,
        shape: RequestShape,
        precision: str = "stored",
        assumptions: StepAssumptions | None = None,
        distribution: ExpertDistribution | None = None,
        season: Season = Season.PEAK,
    ) -> None:
        self.system = system
        self.model = model
        self.candidate = candidate
        self.shape = shape
        self.precision = precision
        self.assumptions = assumptions or StepAssumptions()
        self.season = season
        self.power = SystemPower(system)
        self._ranks = candidate.partition.ranks
        self._costs: StepCostModel = self.assumptions.cost_model(
            system,
            model,
            candidate.partition,
            first_chip=candidate.first_chip,
            distribution=distribution,
        )

    @property
    def idle_chip_watts(self) -> float:
        """What a chip without work draws."""
        return self._costs.idle_chip_watts

    @property
    def kv_batch_max(self) -> int:
        """Requests whose whole KV, prompt and output, fits the pool of a rank at once."""
        return self.candidate.kv_room_tokens // self.shape.tokens

    def batches(self, asked: tuple[int, ...] = (), *, decode_only: bool = False) -> Iterator[int]:
        """Powers of two up to what fits, then that; or those of `asked` that fit.

        With `decode_only` a step has no prompt tokens beside its decodes.
        """
        shape = self.shape
        per_request = 1 + (0 if decode_only else shape.prefill_per_step(1))
        most = min(self.kv_batch_max, int(shape.batched_tokens_max / per_request))
        if asked:
            yield from (batch for batch in asked if batch <= most)
            return
        batch = 1
        while batch < most:
            yield batch
            batch *= 2
        if most:
            yield most

    def decode(self, batch: int) -> MeanStep:
        """A step that decodes `batch` requests on every rank."""
        return self._mean([steady_batch(self._ranks, decodes=batch, shape=self.shape)])

    def aggregated(self, batch: int) -> MeanStep:
        """The mean of steps with and without prompt tokens, when as many requests begin as end.

        Steps with prompts carry `prefill_chunk_tokens`, or more where that would not suffice; all
        ranks have theirs in the same steps.
        """
        shape = self.shape
        per_step = shape.prefill_per_step(batch)
        chunk = max(ceil(per_step), shape.prefill_chunk_tokens or 1)
        chunk = min(chunk, max(ceil(per_step), shape.batched_tokens_max - batch))
        mixed = self._mean(
            [steady_batch(self._ranks, decodes=batch, shape=shape, prefill_tokens=chunk)]
        )
        share = per_step / chunk
        if share == 1:
            return mixed
        alone = self.decode(batch)
        return _blend(mixed, share, alone, 1 - share)

    @cached_property
    def prompt_ns(self) -> float:
        """From an idle replica's first step on a prompt to its first output token."""
        return self._mean(prompt_chunks(self._ranks, self.shape), together=True).duration_ns

    def prefill(self) -> tuple[MeanStep, int]:
        """All ranks computing prompts alone: the time until a rank has done so many prompts."""
        steps, prompts = prefill_steps(self._ranks, self.shape)
        return self._mean(steps, together=True), prompts

    def operating_point(self, batch: int) -> OperatingPoint:
        """The machine full of such replicas, each rank decoding `batch` requests."""
        step = self.aggregated(batch)
        candidate, shape, system = self.candidate, self.shape, self.system
        step, factor = within_budget(self.power, step, candidate.partition.chips)
        users = candidate.replicas * self._ranks * batch
        chips = system.chips.count
        idle_chips = chips - candidate.replicas * candidate.partition.chips
        chip_watts_sum = candidate.replicas * step.chip_watts_sum
        chip_watts_sum += idle_chips * self.idle_chip_watts
        facility = self.power.facility_watts(chip_watts_sum, chips=chips, season=self.season)
        return OperatingPoint(
            system=system.name,
            model=self.model.name,
            precision=self.precision,
            overlap=self.assumptions.overlap_name,
            calibration=self.assumptions.calibration_name,
            candidate=candidate,
            batch=batch,
            users=users,
            prompt_tokens=shape.prompt_tokens,
            output_tokens=shape.output_tokens,
            tpot_ns=step.duration_ns,
            ttft_ns=self.prompt_ns,
            requests_per_s=users / (shape.output_tokens * step.duration_ns) * NS_PER_S,
            chip_watts=chip_watts_sum / chips,
            rack_cap_factor=factor,
            drawn_watts=facility.total_watts,
            provisioned_watts=facility.provisioned_watts,
            all_in_watts=self.power.all_in_watts(chips)[0],
        )

    def _mean(self, batches: list[StepBatch], *, together: bool = False) -> MeanStep:
        """Watts averaged over the steps' time; their mean duration, or the sum of `together`."""
        costs = [self._costs.cost(batch) for batch in batches]
        duration_ns = np.array([cost.duration_ns for cost in costs], dtype=np.float64)
        watts = np.array([cost.chip_watts.sum() for cost in costs])
        return MeanStep(
            duration_ns=float(duration_ns.sum() if together else duration_ns.mean()),
            chip_watts_sum=float(np.average(watts, weights=duration_ns)),
        )


def within_budget(power: SystemPower, step: MeanStep, chips: int) -> tuple[MeanStep, float]:
    """The step of `chips` chips slowed until racks full of such chips keep to their budget, and how
    much.

    Racks are taken to be full: chips that are idle beside them are no reserve.
    """
    idle_watts = power.system.chip.idle_watts.value
    above_watts = step.chip_watts_sum / chips - idle_watts
    room_watts = power.chip_cap_watts - idle_watts
    if above_watts <= room_watts or room_watts <= 0:
        return step, 1.0
    slowed = MeanStep(
        duration_ns=step.duration_ns * above_watts / room_watts,
        chip_watts_sum=chips * power.chip_cap_watts,
    )
    return slowed, above_watts / room_watts


def _blend(one: MeanStep, share: float, other: MeanStep, rest: float) -> MeanStep:
    """Steps of two kinds, `share` and `rest` of all of them."""
    duration_ns = share * one.duration_ns + rest * other.duration_ns
    joules = share * one.duration_ns * one.chip_watts_sum
    joules += rest * other.duration_ns * other.chip_watts_sum
    return MeanStep(duration_ns=duration_ns, chip_watts_sum=joules / duration_ns)
