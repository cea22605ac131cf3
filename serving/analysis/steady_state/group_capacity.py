"""A group's size, reading time, and request rate within the target, from the cost model.

The partition's steady state gives a rate without a queue, for requests of mean length; a share of
it is used, since arrivals are bursty and lengths vary. A group serves its part of all chips' rate
or of that of the chips left when all lendable groups are out, whichever is smaller: on fewer chips
each holds more experts.
"""

from dataclasses import replace
from typing import Final

from emulator.errors import HbmExhausted
from emulator.memory.chip_contents import HbmTerms, kv_capacity_tokens
from emulator.specs.partition import Partition
from emulator.ultraserver.machine import Machine
from emulator.units import NS_PER_S
from loadgen.measures.slo import Slo
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.steady_state.replica import Replica
from serving.analysis.steady_state.request_shape import RequestShape
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.engine.lease_checks import training_hbm

QUEUE_SHARE: Final = 0.5
"""Of the steady state's rate. Step by step, vLLM's schedulers under Poisson arrivals kept TTFT 1 s
and TPOT 30 ms for 99 % of requests up to 0.54 and 0.63 of it (gpt-oss-120b on 4 and 8 Trainium3
chips, `ultraserve day`); *assumed* to be no less elsewhere.
"""


def group_requests_per_s(
    machine: Machine,
    *,
    slo: Slo,
    shape: RequestShape,
    seats: int,
    utilization: float,
    group_chips: int,
    lend_groups: int,
) -> float | None:
    """Requests per emulated second of one group, with `seats` sequences per rank at once; None when
    the steady state misses the target at every rate.

    With no `lend_groups` the group is all of the machine, beside others.
    """
    chips = machine.partition.chips
    parts = [
        _partition_requests_per_s(
            machine, count, slo=slo, shape=shape, seats=seats, utilization=utilization
        )
        * (group_chips / count)
        for count in (chips, chips - lend_groups * group_chips)
    ]
    # What does not fit as evenly as a partition of its own may still be served by what is left.
    kept = [part for part in parts if part > 0]
    return QUEUE_SHARE * min(kept) if parts[0] else None


def fewest_training_chips(machine: Machine) -> int | None:
    """The smallest group of whole ranks whose HBM holds a training state, or None.

    At most half of the partition's chips, since one group always serves.
    """
    partition = machine.partition
    needs = training_hbm(machine.system, machine.model, lnc=partition.lnc)
    for chips in range(partition.tp, partition.chips // 2 + 1, partition.tp):
        try:
            needs(chips)
        except HbmExhausted:
            continue
        return chips
    return None


def group_reading_s(machine: Machine, *, group_chips: int) -> float:
    """Emulated seconds for the slowest group to read weights and experts from its trays' drives;
    parts that come over links come sooner.
    """
    groups = range(machine.partition.chips // group_chips)
    members = (range(group * group_chips, (group + 1) * group_chips) for group in groups)
    return max(machine.renewal(each).duration_ns for each in members) / NS_PER_S


def _partition_requests_per_s(
    machine: Machine,
    chips: int,
    *,
    slo: Slo,
    shape: RequestShape,
    seats: int,
    utilization: float,
) -> float:
    """Of `chips` in steady state; 0 where nothing fits, or the mean TPOT or the TTFT without a
    queue misses the target.
    """
    served, costs = machine.partition, machine.cost_model
    ep = max(size for size in range(1, served.ep + 1) if chips % size == 0)
    partition: Partition = replace(served, chips=chips, ep=ep, spares=0)
    system, model = machine.system, machine.model
    room = kv_capacity_tokens(model, system, partition, terms=HbmTerms(utilization=utilization))
    if room < shape.tokens:
        return 0.0
    replica = Replica(
        system,
        model,
        PartitionCandidate(
            partition=partition, replicas=1, first_chip=served.first_chip, kv_capacity_tokens=room
        ),
        shape=shape,
        assumptions=StepAssumptions(overlap=costs.overlap, calibration=costs.calibration),
        distribution=costs.layout.distribution,
    )
    if slo.ttft_s is not None and replica.prompt_ns > slo.ttft_s * NS_PER_S:
        return 0.0
    limit_ns = float("inf") if slo.tpot_s is None else slo.tpot_s * NS_PER_S
    batches = sorted({min(batch, seats) for batch in replica.batches()})
    points = replica.operating_points(batches)
    rates = (point.requests_per_s for point in points if point.tpot_ns <= limit_ns)
    return max(rates, default=0.0)
