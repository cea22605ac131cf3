"""A policy of day and night sees how many requests of a simulation are in time."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from emulator.specs.partition import Partition
from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform
from loadgen.workloads.traffic import Traffic
from serving.policy.day_night.day_clock import DAY_S
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Decision, Policy
from serving.simulator import SchedulerLimits, SimulatedDeployment, simulate
from serving.simulator.day_night import SimulatedDayNight
from serving.telemetry.recent_times import LEAST

pytestmark = pytest.mark.long

DEPLOYMENT = SimulatedDeployment.of(
    "trn3-nl72x2",
    "qwen3-30b-a3b",
    Partition(chips=16, ep=16, lnc=2),
    schedulers=SchedulerLimits(max_num_seqs=8),
)
LENGTHS = IndependentLengths(prompt=Uniform(least=1, most=900), output=Uniform(least=1, most=5))
DAY_LENGTH_S = 48.0
TRAFFIC = Traffic.drawn(rate_per_s=6.0, lengths=LENGTHS, seed=3, requests=380)


@dataclass(frozen=True, slots=True, kw_only=True)
class LooksOn(Policy):
    """All serve, or from a look on one group fewer; notes what it was shown."""

    name = "looks on"

    fewer_from: int | None = None
    seen: list[Observation] = field(default_factory=list)

    def decide(self, observed: Observation) -> Decision:
        self.seen.append(observed)
        is_fewer = self.fewer_from is not None and len(self.seen) > self.fewer_from
        return Decision(serving_groups=observed.groups - is_fewer, reason="")

    def describe(self) -> str:
        return self.name


def looked_on_by(policy: LooksOn, *, ttft_s: float, tpot_s: float) -> SimulatedDayNight:
    """Of two groups; an emulated second is half an hour."""
    return SimulatedDayNight(
        policy="never",
        own_policy=policy,
        day_length_s=DAY_LENGTH_S,
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


def test_a_policy_sees_how_many_requests_are_within_ttft_and_within_tpot() -> None:
    plain = simulate(DEPLOYMENT, TRAFFIC)
    ttft_s, tpot_s = np.quantile(plain.ttft_s, 0.7), np.quantile(plain.tpot_of_several_s, 0.4)
    policy = LooksOn()
    day_night = looked_on_by(policy, ttft_s=float(ttft_s), tpot_s=float(tpot_s))
    simulate(DEPLOYMENT, TRAFFIC, day_night=day_night)

    shares = [(each.ttft_attainment, each.tpot_attainment) for each in policy.seen]
    assert shares[0] == (None, None)
    # All but those of the last moments, which had not ended.
    assert shares[-1] == pytest.approx((0.7, 0.4), abs=0.03)


def test_after_a_change_tpot_is_that_of_requests_that_began_since() -> None:
    lengths = IndependentLengths(
        prompt=Uniform(least=1, most=900), output=Uniform(least=2, most=300)
    )
    traffic = Traffic.drawn(rate_per_s=12.0, lengths=lengths, seed=3, requests=480)
    tpot_s = float(np.quantile(simulate(DEPLOYMENT, traffic).tpot_of_several_s, 0.5))
    policy = LooksOn(fewer_from=15)
    run = simulate(
        DEPLOYMENT, traffic, day_night=looked_on_by(policy, ttft_s=1.0, tpot_s=tpot_s)
    ).served
    further = traffic.output_tokens - 1
    is_in_time = (run.last_token_s - run.first_token_s) / further <= tpot_s

    differ = 0
    for seen in policy.seen[16:]:
        at_s = (seen.now_s - policy.seen[0].now_s) * DAY_LENGTH_S / DAY_S
        changed_s = at_s - seen.since_change_s * DAY_LENGTH_S / DAY_S
        has_ended = run.last_token_s <= at_s
        begun = has_ended & (run.first_token_s > changed_s)
        if begun.sum() < LEAST:
            assert seen.tpot_attainment is None
            continue
        assert seen.tpot_attainment == pytest.approx(is_in_time[begun].mean())
        differ += is_in_time[has_ended & (run.last_token_s > changed_s)].mean() != (
            seen.tpot_attainment
        )
    assert differ > 0  # some straddle the change
