"""How a data-parallel job goes on with more or fewer groups, without a checkpoint.

Its state, weights and optimizer, lies in even parts on its chips; in its next size too. What lies
elsewhere then goes over the fabric, all at once. Copies of the weights for new replicas are those
that a step gathers anyway.
"""

from collections.abc import Sequence

import numpy as np

from emulator.arrays import Float64s
from emulator.fabric.all_to_all import AllToAll
from emulator.specs.system import SystemSpec
from emulator.ultraserver.handover_cost import experts_moved
from emulator.units import NS_PER_S
from serving.analysis.tenants.tenant import Resharding
from serving.simulator.job_cost import JobCost


def resharding(
    system: SystemSpec, jobs: Sequence[JobCost | None], *, group_chips: int
) -> Resharding:
    """Between all sizes of `jobs`, [groups + 1], that have one recipe but for data parallelism."""
    size = len(jobs)
    seconds, joules = np.full((size, size), np.inf), np.zeros((size, size))
    for groups, job in enumerate(jobs):
        if job is None:
            continue
        seconds[groups, groups] = 0.0
        for fewer, other in enumerate(jobs[:groups]):
            if other is None or other.recipe != job.recipe:
                continue
            links = AllToAll(system, job.chips)
            for pair, before, after in (
                ((fewer, groups), other.chips, job.chips),
                ((groups, fewer), job.chips, other.chips),
            ):
                parts = moved_bytes(job.save.bytes_storage, before, after)
                cost = experts_moved(system, parts, links)
                seconds[pair] = cost.duration_ns / NS_PER_S
                joules[pair] = cost.joules + cost.idle_joules(system, chips=groups * group_chips)
    return Resharding(
        seconds=seconds,
        joules=joules,
        finish_s=np.array([job.step_s / 2 if job else 0.0 for job in jobs]),
    )


def moved_bytes(total: float, before: int, after: int) -> Float64s:
    """Of a state in even parts on the first `before` chips, and on the first `after` then.

    [sender, receiver], of as many chips as there are in the larger size.
    """
    chips = max(before, after)
    sent = np.zeros((chips, chips))
    old, new = np.linspace(0, total, before + 1), np.linspace(0, total, after + 1)
    begins = np.maximum(old[:-1, None], new[None, :-1])
    ends = np.minimum(old[1:, None], new[None, 1:])
    sent[:before, :after] = np.maximum(ends - begins, 0.0)
    return sent
