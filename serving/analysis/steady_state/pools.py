"""Prefill and decode on separate chips: two pools, and the KV transfer between them.

Prefill replicas of one partition and decode replicas of another, in the numbers that serve the most
requests. In one unit both pools share its chips; in a cluster each has whole units, and KV goes
over the network cards. A request waits for its prompt and its KV once; decodes are never held up.

Placement is assumed: a prompt's KV goes between ranks half a unit apart (the other rack of two, the
middle of a torus); in a cluster, in two units. Chips keep to their even part of their rack's power.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.fabric.kv_transfer import prompt_transfer_ns
from emulator.power.system_power import SystemPower
from emulator.specs.system import SystemSpec
from emulator.units import NS_PER_S
from serving.analysis.steady_state.operating_point import OperatingPoint
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.replica import MeanStep, Replica
from serving.analysis.steady_state.sweep import Sweep, Task, no_batch_fits, point_order, shared
from serving.simulator import THIS_PROCESS, SimulationWorkers

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillOption:
    """A partition that computes prompts; figures of one replica, always busy."""

    precision: str
    candidate: PartitionCandidate
    step: MeanStep  # in which every rank computes `prompts`
    prompts: int
    prompt_ns: float  # of a prompt that comes to an idle replica

    @property
    def requests_per_s(self) -> float:
        """Of one replica."""
        return self.candidate.partition.ranks * self.prompts / self.step.duration_ns * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOption:
    """A partition that decodes `batch` requests a rank, and computes no prompts."""

    precision: str
    candidate: PartitionCandidate
    batch: int
    step: MeanStep
    output_tokens: int

    @property
    def requests_per_s(self) -> float:
        """Of one replica."""
        return self.users / (self.output_tokens * self.step.duration_ns) * NS_PER_S

    @property
    def users(self) -> int:
        """Of one replica."""
        return self.candidate.partition.ranks * self.batch


Engine = TypeVar("Engine", PrefillOption, DecodeOption)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Replicas of both pools, and the requests that they serve together."""

    prefill: PrefillOption
    prefill_replicas: int
    decode_replicas: int
    requests_per_s: float


def pooled_points(
    sweep: Sweep, *, workers: SimulationWorkers = THIS_PROCESS
) -> tuple[OperatingPoint, ...]:
    """Every point of `sweep` with pools: each decode partition and batch, beside the best prefill.

    Both pools have the same precision. Raises ConfigError when no batch or no two pools fit, or
    replicas may lie across units, which pools do not share.
    """
    if sweep.asked.across_units:
        raise ConfigError("across-units", True, "false with pools, which have whole units")
    options = shared(_options_of, sweep, workers)
    prefills = [each for each in options if isinstance(each, PrefillOption)]

    @cache
    def transfer_ns(from_chips: int, to_chips: int) -> float:
        return prompt_transfer_ns(
            sweep.system,
            sweep.model,
            prompt_tokens=sweep.shape.prompt_tokens,
            from_chips=from_chips,
            to_chips=to_chips,
        )

    points = []
    for decode in options:
        if isinstance(decode, DecodeOption):
            beside = [each for each in prefills if each.precision == decode.precision]
            split = best_split(sweep.system, decode, beside)
            if split is not None:
                from_chips = split.prefill.candidate.partition.tp
                kv_ns = transfer_ns(from_chips, decode.candidate.partition.tp)
                points.append(pooled_point(sweep, decode, split, kv_ns))
    if not points:
        raise no_batch_fits(sweep)
    return tuple(sorted(points, key=point_order))


def _options_of(sweep: Sweep, task: Task) -> list[PrefillOption | DecodeOption]:
    precision, candidate = task
    replica = sweep.replica(precision, candidate)
    batches = list(replica.batches(sweep.batches, decode_only=True))
    return [
        prefill_option(precision, replica),
        *(
            DecodeOption(
                precision=precision,
                candidate=candidate,
                batch=batch,
                step=step,
                output_tokens=sweep.shape.output_tokens,
            )
            for batch, step in zip(batches, replica.decodes(batches), strict=True)
        ),
    ]


def prefill_option(precision: str, replica: Replica) -> PrefillOption:
    """A replica that computes prompts alone."""
    step, prompts = replica.prefill()
    return PrefillOption(
        precision=precision,
        candidate=replica.candidate,
        step=step,
        prompts=prompts,
        prompt_ns=replica.prompt_ns,
    )


def best_split(
    system: SystemSpec, decode: DecodeOption, prefills: list[PrefillOption]
) -> Split | None:
    """The pools that serve the most, then answer the soonest; None when no prefill replica fits."""
    best: Split | None = None
    fastest = strongest_of_each_size(prefills)
    for option in sorted(fastest, key=lambda option: option.prompt_ns):
        prefill_counts, decode_counts = _splits(system, option.candidate, decode.candidate)
        if not len(decode_counts):
            continue
        served = np.minimum(
            prefill_counts * option.requests_per_s, decode_counts * decode.requests_per_s
        )
        at = int(served.argmax())
        if best is None or served[at] > best.requests_per_s:
            best = Split(
                prefill=option,
                prefill_replicas=int(prefill_counts[at]),
                decode_replicas=int(decode_counts[at]),
                requests_per_s=float(served[at]),
            )
    return best


def strongest_of_each_size(engines: Iterable[Engine]) -> list[Engine]:
    """For each number of chips the option that serves the most requests."""
    strongest: dict[int, Engine] = {}
    for engine in engines:
        chips = engine.candidate.partition.chips
        if chips not in strongest or engine.requests_per_s > strongest[chips].requests_per_s:
            strongest[chips] = engine
    return list(strongest.values())


def _splits(
    system: SystemSpec, prefill: PartitionCandidate, decode: PartitionCandidate
) -> tuple[Int64s, Int64s]:
    """Replicas of both pools, at least one each, in every division: int64[ways] each."""
    unit_chips = system.chips.count // system.units
    per_prefill, per_decode = prefill.partition.chips, decode.partition.chips
    if system.units == 1:
        decodes = np.arange(1, unit_chips // per_decode + 1)
        prefills = (unit_chips - decodes * per_decode) // per_prefill
    else:
        units = np.arange(1, system.units)
        decodes = units * (unit_chips // per_decode)
        prefills = (system.units - units) * (unit_chips // per_prefill)
    both = (decodes >= 1) & (prefills >= 1)
    return prefills[both], decodes[both]


def pooled_point(sweep: Sweep, decode: DecodeOption, split: Split, kv_ns: float) -> OperatingPoint:
    """A pool with spare capacity idles in between, and draws less."""
    system, shape, prefill = sweep.system, sweep.shape, split.prefill
    power = SystemPower(system)
    chips, step = system.chips.count, decode.step
    chip_watts = mean_chip_watts(system, decode, split)
    facility = power.facility_watts(chips * chip_watts, chips=chips, season=sweep.season)
    return OperatingPoint(
        system=system.name,
        model=sweep.model.name,
        precision=decode.precision,
        overlap=sweep.assumptions.overlap.value,
        calibration=sweep.assumptions.calibration.name,
        candidate=replace(decode.candidate, replicas=split.decode_replicas),
        prefill=replace(prefill.candidate, replicas=split.prefill_replicas),
        batch=decode.batch,
        users=split.requests_per_s * shape.output_tokens * step.duration_ns / NS_PER_S,
        prompt_tokens=shape.prompt_tokens,
        output_tokens=shape.output_tokens,
        tpot_ns=step.duration_ns,
        ttft_ns=prefill.prompt_ns + kv_ns,
        requests_per_s=split.requests_per_s,
        chip_watts=chip_watts,
        throttle_factor=step.throttle_factor,
        drawn_watts=facility.total_watts,
        provisioned_watts=facility.provisioned_watts,
        all_in_watts=power.all_in_watts(chips)[0],
    )


def mean_chip_watts(system: SystemSpec, decode: DecodeOption, split: Split) -> float:
    """Over all chips of the machine; the faster pool idles part of the time."""
    idle_watts = system.chip.idle_watts.value
    above_watts = 0.0
    for option, replicas in (
        (decode, split.decode_replicas),
        (split.prefill, split.prefill_replicas),
    ):
        busy_share = split.requests_per_s / (replicas * option.requests_per_s)
        idle_sum = idle_watts * option.candidate.partition.chips
        above_watts += busy_share * replicas * (option.step.chip_watts_sum - idle_sum)
    return idle_watts + above_watts / system.chips.count
