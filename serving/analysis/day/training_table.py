"""Training rates of leased groups and costs of hand-overs, from the cost model.

A job has all leased chips of a machine, or as many as train the most: experts that do not divide
evenly can make a larger job slower. Left-out chips idle.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.specs.model import ModelSpec
from emulator.timing.model_flops import training_flops_per_token
from emulator.ultraserver.handover_cost import weights_read
from emulator.units import NS_PER_S
from loadgen.workloads.length_pairs import ObservedLengths
from serving.analysis.day.partition_curve import GroupCurve
from serving.analysis.day.training_yield import GroupHandover, TrainingYield
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.simulator.job_cost import JobCost, JobTerms, best_job

Float64s = NDArray[np.float64]


def training_yield(terms: JobTerms, *, group_chips: int, groups: int) -> TrainingYield:
    """Of one machine; raises ConfigError when all its groups cannot hold the training state."""
    chosen = jobs_by_groups(terms, group_chips=group_chips, groups=groups)
    return yield_of_jobs(terms, chosen, group_chips=group_chips)


def jobs_by_groups(terms: JobTerms, *, group_chips: int, groups: int) -> list[JobCost | None]:
    """The fastest job of each number of leased groups of a machine, [groups + 1].

    Raises ConfigError when all of them cannot hold the training state.
    """
    chosen: list[JobCost | None] = [None]
    for leased in range(1, groups + 1):
        best = best_job(terms, range(leased * group_chips))
        known = [each for each in (chosen[-1], best) if each]
        chosen.append(max(known, key=lambda job: job.tokens_per_s, default=None))
    least = terms.fewest_chips
    if chosen[-1] is None or least is None:
        raise ConfigError(
            "train-model",
            terms.model.name,
            f"one whose training state fits {groups * group_chips} chips of {terms.system.name}"
            + ("" if least is None else f"; it needs {least}")
            + ("" if terms.searched else ", or --train-recipe searched"),
        )
    return chosen


def yield_of_jobs(
    terms: JobTerms, chosen: Sequence[JobCost | None], *, group_chips: int
) -> TrainingYield:
    """Of jobs by leased groups, [groups + 1], of which the last is one."""
    system, model = terms.system, terms.model
    groups, jobs = len(chosen) - 1, [job for job in chosen if job]

    def column(of: Callable[[JobCost], float]) -> Float64s:
        return np.array([of(job) if job else 0.0 for job in chosen])

    idle = system.chip.idle_watts.value
    leased_chips = np.arange(groups + 1) * float(group_chips)
    at_work = column(lambda job: job.chips)
    save_s = column(lambda job: job.save.duration_ns / NS_PER_S + job.step_s / 2)
    start_s = column(lambda job: job.read.duration_ns / NS_PER_S + terms.start_s)
    return TrainingYield(
        model=model.name,
        least_chips=jobs[0].chips,
        recipe=jobs[-1].recipe.described,
        peak_flops_per_s=system.chip.tensor_flops_per_s("bf16"),
        flops_per_token=training_flops_per_token(model, terms.recipe.sequence_tokens),
        tokens_per_s=column(lambda job: job.tokens_per_s),
        chips_at_work=at_work,
        watts=column(lambda job: job.watts) + idle * (leased_chips - at_work),
        save_s=save_s,
        start_s=start_s,
        save_joules=column(lambda job: job.save.joules) + idle * leased_chips * save_s,
        start_joules=column(lambda job: job.read.joules) + idle * leased_chips * start_s,
    )


def group_handover(
    terms: JobTerms,
    served: ModelSpec,
    candidate: PartitionCandidate,
    curve: GroupCurve,
    lengths: ObservedLengths,
    *,
    grace_s: float,
) -> GroupHandover:
    """Times and energy for a group of `candidate` to leave, and to read `served`'s weights again.

    It is empty when its longest request has ended, or after `grace_s`, when the rest is moved.
    """
    at = np.array([curve.capacity_per_s])
    ttft_s = float(curve.seconds("ttft_p99_s", at)[0])
    tpot_s = float(curve.seconds("tpot_p99_s", at)[0])
    last_s = ttft_s + (lengths.output_tokens - 1) * tpot_s  # [seen], of a request
    restore_s, restore_joules = group_load(terms, served, candidate)
    return GroupHandover(
        drain_s=min(grace_s, float(last_s.max())),
        restore_s=restore_s,
        restore_joules=restore_joules,
        # Little's law: so many of the requests that arrive in a second are there after the grace.
        moved_requests_per_rate_s=float(np.maximum(last_s - grace_s, 0.0).mean()),
    )


def group_load(
    terms: JobTerms, served: ModelSpec, candidate: PartitionCandidate
) -> tuple[float, float]:
    """Seconds and joules until a group of `candidate` has started and read `served`'s weights.

    Reading is an upper bound: all groups of a machine read at once and share a tray's drives, and
    every chip reads all dense weights, though tp above 1 needs fewer.
    """
    partition = candidate.partition
    chips = terms.system.chips.count // partition.chips * partition.chips
    read = weights_read(
        terms.system,
        np.arange(chips),
        np.full(chips, _weight_bytes_per_chip(served, ep=partition.ep)),
        terms.rates,
    )
    restore_s = read.duration_ns / NS_PER_S + terms.start_s
    idle_joules = terms.system.chip.idle_watts.value * partition.chips * restore_s
    return restore_s, read.joules * partition.chips / chips + idle_joules


def _weight_bytes_per_chip(model: ModelSpec, *, ep: int) -> int:
    """The experts of the fullest chip, and all dense weights."""
    of_layer = -(-model.experts // ep) * model.expert_bytes
    dense = model.weight_bytes - model.moe_layers * model.experts * model.expert_bytes
    return dense + model.moe_layers * of_layer
