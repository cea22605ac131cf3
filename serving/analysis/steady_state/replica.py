"""Cost of one replica's steps in steady state: decode, mixed and prefill."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from emulator.power.system_power import SystemPower
from emulator.specs.batch import StepBatch
from emulator.specs.model import ModelSpec
from emulator.specs.rack_power import Season
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.step_parts import THROTTLE
from emulator.units import NS_PER_S
from serving.analysis.steady_state.operating_point import OperatingPoint
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.request_shape import RequestShape
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.analysis.steady_state.step_batches import prefill_steps, prompt_chunks, steady_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStep:
    """A step of a steady state, averaged."""

    duration_ns: float
    chip_watts_sum: float  # of all chips of a replica
    throttled_ns: float = 0.0  # of the time, so that chips draw no more than they may

    @property
    def throttle_factor(self) -> float:
        """Duration over that without power limits."""
        return self.duration_ns / (self.duration_ns - self.throttled_ns)


class Replica:
    """A candidate's step costs, those of the replica whose chips lie the farthest apart."""

    def __init__(
        self,
        system: SystemSpec,
        model: ModelSpec,
        candidate: PartitionCandidate,
        *,
        shape: RequestShape,
        assumptions: StepAssumptions,
        precision: str = "stored",
        distribution: ExpertDistribution | None = None,
        season: Season = Season.PEAK,
    ) -> None:
        self.system = system
        self.model = model
        self.candidate = candidate
        self.shape = shape
        self.precision = precision
        self.assumptions = assumptions
        self.season = season
        self.power = SystemPower(system)
        self._all_in_watts = self.power.all_in_watts(system.chips.count)[0]
        self._ranks = candidate.partition.ranks
        self._costs = self.assumptions.cost_model(system, model, candidate, distribution)

    def with_shape(self, shape: RequestShape) -> Self:
        """The same for other requests."""
        made = copy(self)
        made.shape = shape
        made.__dict__.pop("prompt_ns", None)
        return made

    @property
    def idle_chip_watts(self) -> float:
        """Of one chip without work."""
        return self._costs.idle_chip_watts

    @property
    def kv_batch_max(self) -> int:
        """Requests whose KV, prompt and output, fits the pool of a rank at once, what is common to
        all of them once.
        """
        common = self.shape.common_tokens
        return (self.candidate.kv_capacity_tokens - common) // (self.shape.tokens - common)

    def batches(self, asked: tuple[int, ...] = (), *, decode_only: bool = False) -> Iterator[int]:
        """Powers of two up to the largest batch that fits, and that; or those of `asked` that fit.

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

    def seated(self, seats: int) -> list[int]:
        """Ascending `batches`, of at most `seats` requests a rank."""
        return sorted({min(batch, seats) for batch in self.batches()})

    def decode(self, batch: int) -> MeanStep:
        """A step that decodes `batch` requests on every rank."""
        return self.decodes([batch])[0]

    def decodes(self, batches: Sequence[int]) -> list[MeanStep]:
        """The vectorised `decode`."""
        steps = [steady_batch(self._ranks, decodes=each, shape=self.shape) for each in batches]
        return self._steps(steps)

    def aggregated(self, batches: Sequence[int]) -> list[MeanStep]:
        """For each batch the mean of steps with and without prompts, when as many requests begin as
        end.

        Steps with prompts carry `prefill_chunk_tokens`, or more where needed; all ranks have theirs
        in the same steps.
        """
        shape, ranks = self.shape, self._ranks
        mixed, alone, shares = [], [], []
        for batch in batches:
            chunk, share = shape.prefill_turns(batch)
            mixed.append(steady_batch(ranks, decodes=batch, shape=shape, prefill_tokens=chunk))
            shares.append(share)
            if shares[-1] < 1:
                alone.append(steady_batch(ranks, decodes=batch, shape=shape))
        steps = self._steps([*mixed, *alone])
        decodes = iter(steps[len(mixed) :])
        return [
            step if share == 1 else _blend(step, share, next(decodes), 1 - share)
            for step, share in zip(steps, shares, strict=False)
        ]

    @cached_property
    def prompt_ns(self) -> float:
        """From an idle replica's first step on a prompt to its first output token."""
        return self.prompt_ns_of(self.shape.prompt_tokens, self.shape.cached_tokens)

    def prompt_ns_of(self, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """`prompt_ns` of another prompt, of which so many tokens are cached."""
        shape = replace(
            self.shape,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            common_tokens=0,
        )
        return self._together(prompt_chunks(self._ranks, shape)).duration_ns

    def prefill(self) -> tuple[MeanStep, int]:
        """All ranks on prompts alone: the total step, and the prompts that a rank completes."""
        steps, prompts = prefill_steps(self._ranks, self.shape)
        return self._together(steps), prompts

    def operating_point(self, batch: int) -> OperatingPoint:
        """The machine full of such replicas, each rank decoding `batch` requests."""
        return self.operating_points([batch])[0]

    def operating_points(self, batches: Sequence[int]) -> list[OperatingPoint]:
        """The vectorised `operating_point`."""
        steps = self.aggregated(batches)
        return [self._point(batch, step) for batch, step in zip(batches, steps, strict=True)]

    def _point(self, batch: int, step: MeanStep) -> OperatingPoint:
        candidate, shape, system = self.candidate, self.shape, self.system
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
            overlap=self.assumptions.overlap.value,
            calibration=self.assumptions.calibration.name,
            candidate=candidate,
            batch=batch,
            users=users,
            prompt_tokens=shape.prompt_tokens,
            output_tokens=shape.output_tokens,
            tpot_ns=step.duration_ns,
            ttft_ns=self.prompt_ns,
            requests_per_s=users / (shape.output_tokens * step.duration_ns) * NS_PER_S,
            chip_watts=chip_watts_sum / chips,
            throttle_factor=step.throttle_factor,
            drawn_watts=facility.total_watts,
            provisioned_watts=facility.provisioned_watts,
            all_in_watts=self._all_in_watts,
        )

    def _steps(self, batches: Sequence[StepBatch]) -> list[MeanStep]:
        return [
            MeanStep(
                duration_ns=float(cost.duration_ns),
                chip_watts_sum=float(cost.chip_watts.sum()),
                throttled_ns=cost.parts_ns.get(THROTTLE, 0.0),
            )
            for cost in self._costs.costs(batches)
        ]

    def _together(self, batches: Sequence[StepBatch]) -> MeanStep:
        """Several steps as one: times added, watts averaged over time."""
        steps = self._steps(batches)
        duration_ns = [step.duration_ns for step in steps]
        watts = [step.chip_watts_sum for step in steps]
        return MeanStep(
            duration_ns=sum(duration_ns),
            chip_watts_sum=float(np.average(watts, weights=duration_ns)),
            throttled_ns=sum(step.throttled_ns for step in steps),
        )


def _blend(one: MeanStep, share: float, other: MeanStep, rest: float) -> MeanStep:
    """Steps of two kinds, `share` and `rest` of all of them."""
    duration_ns = share * one.duration_ns + rest * other.duration_ns
    joules = share * one.duration_ns * one.chip_watts_sum
    joules += rest * other.duration_ns * other.chip_watts_sum
    return MeanStep(
        duration_ns=duration_ns,
        chip_watts_sum=joules / duration_ns,
        throttled_ns=share * one.throttled_ns + rest * other.throttled_ns,
    )
