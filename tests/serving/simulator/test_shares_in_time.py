"""A policy of day and night sees how many requests of a simulation are in time."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from emulator.specs.partition import Partition
from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform
from loadgen.workloads.traffic import Traffic
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Decision, Policy
from serving.simulator import SchedulerLimits, SimulatedDeployment, simulate
from serving.simulator.day_night import SimulatedDayNight

DEPLOYMENT = SimulatedDeployment.of(
    "trn3-nl72x2",
    "qwen3-30b-a3b",
    Partition(chips=16, ep=16, lnc=2),
    schedulers=SchedulerLimits(max_num_seqs=8),
)
LENGTHS = IndependentLengths(prompt=Uniform(least=1, most=900), output=Uniform(least=1, most=5))
TRAFFIC = Traffic.drawn(rate_per_s=6.0, lengths=LENGTHS, seed=3, requests=380)


@dataclass(frozen=True, slots=True, kw_only=True)
class LooksOn(Policy):
    """All serve; notes the shares in time that it was shown."""

    name = "looks on"

    shares: list[tuple[float | None, float | None]] = field(default_factory=list)

    def decide(self, observed: Observation) -> Decision:
        self.shares.append((observed.ttft_attainment, observed.tpot_attainment))
        return Decision(serving_groups=observed.groups, reason="")

    def describe(self) -> str:
        return self.name


@pytest.mark.long
def test_a_policy_sees_how_many_requests_are_within_ttft_and_within_tpot() -> None:
    plain = simulate(DEPLOYMENT, TRAFFIC)
    ttft_s, tpot_s = np.quantile(plain.ttft_s, 0.7), np.quantile(plain.tpot_of_several_s, 0.4)
    policy = LooksOn()
    day_night = SimulatedDayNight(
        policy="never",
        own_policy=policy,
        day_length_s=48.0,
        day_start="00:00",
        zone="UTC",
        chips=16,
        group_chips=8,
        lend_groups=1,
        grace_s=0.1,
        slo=Slo.parse(f"ttft={1e3 * ttft_s:.6f}ms,tpot={1e3 * tpot_s:.6f}ms"),
        group_requests_per_s=1_000.0,
        group_requests_source="as it was said",
        reading_s=0.5,
        start_s=0.5,
    )
    simulate(DEPLOYMENT, TRAFFIC, day_night=day_night)

    assert policy.shares[0] == (None, None)
    # All but those of the last moments, which had not ended.
    assert policy.shares[-1] == pytest.approx((0.7, 0.4), abs=0.03)
