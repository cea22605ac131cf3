"""Small machines whose days can be computed by hand."""

from datetime import UTC, datetime
from typing import Any

import numpy as np

from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from serving.analysis.day.curve_search import FirstGuess
from serving.analysis.day.day_demand import DayDemand, WalkTerms
from serving.analysis.day.day_result import DayMachine
from serving.analysis.day.day_walk import DayWalk, walk
from serving.analysis.day.look_outcomes import LookOutcomes
from serving.analysis.day.partition_curve import GroupCurve
from serving.analysis.day.replica_choice import ReplicaChoice
from serving.analysis.day.replica_curve import ReplicaCurve
from serving.analysis.day.replica_run import TAIL, RatePoint
from serving.analysis.day.training_yield import GroupHandover, TrainingYield
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.policy.day_night.history import DemandHistory
from serving.policy.day_night.policy import Policy

MONDAY = datetime(2024, 1, 1, tzinfo=UTC)
SYSTEM = system_by_name("trn3-nl72x2")
HANDOVER = GroupHandover(
    drain_s=30.0, restore_s=60.0, restore_joules=600.0, moved_requests_per_rate_s=0.0
)


CHOICE = ReplicaChoice(
    candidate=PartitionCandidate(
        partition=Partition(chips=1, ep=1), replicas=4, first_chip=0, kv_capacity_tokens=9_000
    ),
    precision="stored",
    guess=FirstGuess(rate_per_s=2.0, tpot_s=0.01, alone_s=0.005),
)


def point(rate_per_s: float, both_share: float, **changes: Any) -> RatePoint:
    fields: dict[str, Any] = {
        "rate_per_s": rate_per_s,
        "judged": 100,
        "ttft_share": both_share,
        "tpot_share": 1.0,
        "both_share": both_share,
        "chip_watts": 100.0 + 50.0 * rate_per_s,
        "served_per_s": rate_per_s,
        "ttft_p99_s": 0.1 * rate_per_s,
        "tpot_p99_s": 0.01,
        "tpot_mean_s": 0.005,
        "ttft_tail_s": tuple(0.1 * rate_per_s * q / 99 for q in TAIL),
        "tpot_tail_s": tuple(0.01 * q / 99 for q in TAIL),
        "steps": 10,
    }
    return RatePoint(**(fields | changes))


CURVE = ReplicaCurve(
    points=(point(1.0, 1.0), point(2.0, 1.0), point(3.0, 0.9)),
    saturated_per_s=4.0,
    required_share=0.99,
    idle_watts=100.0,
    lasting_per_s=np.inf,
    ttft_limit_s=None,
    tpot_limit_s=None,
)
"""A 100 W idle group serves 2.1 requests/s within the target, and at most 4."""


def trained(groups: int = 4, *, least: int = 2) -> TrainingYield:
    """Each group trains 10 tokens/s at 300 W, from `least` groups on; saves 10 s, starts in 20."""
    lent = np.arange(groups + 1, dtype=np.float64)
    works = lent >= least
    return TrainingYield(
        model="trained",
        least_chips=least,
        recipe="a recipe",
        peak_flops_per_s=100.0,
        flops_per_token=6.0,
        tokens_per_s=np.where(works, 10.0 * lent, 0.0),
        chips_at_work=np.where(works, lent, 0.0),
        watts=np.where(works, 300.0, 100.0) * lent,
        save_s=np.where(works, 10.0, 0.0),
        start_s=np.where(works, 20.0, 0.0),
        save_joules=np.where(works, 1_000.0 * lent, 0.0),
        start_joules=np.where(works, 2_000.0 * lent, 0.0),
    )


def machine(groups: int = 4) -> DayMachine:
    return DayMachine(
        system=SYSTEM,
        machines=1,
        group_chips=1,
        curve=CURVE,
        trained=trained(groups),
        mean_prompt_tokens=50.0,
        mean_output_tokens=20.0,
        flops_per_request=1_000.0,
    )


def demand(*arrivals: int, interval_s: float = 60.0) -> DayDemand:
    return DayDemand(
        begins=MONDAY,
        interval_s=interval_s,
        arrivals=np.array(arrivals, dtype=np.int64),
        past=DemandHistory(
            end_s=MONDAY.timestamp(), bucket_s=interval_s, requests_per_s=np.zeros(0)
        ),
    )


def outcomes(
    of: TrainingYield, terms: WalkTerms, handover: GroupHandover = HANDOVER
) -> LookOutcomes:
    return LookOutcomes(
        trained=of,
        handover=handover,
        group_idle_watts=CURVE.idle_watts,
        interval_s=terms.interval_s,
        look_s=terms.look_s,
    )


def walked(
    wanted: DayDemand,
    policy: Policy,
    terms: WalkTerms,
    *,
    groups: int = 4,
    curve: GroupCurve = CURVE,
) -> DayWalk:
    return walk(wanted, curve, outcomes(trained(groups), terms), policy)
