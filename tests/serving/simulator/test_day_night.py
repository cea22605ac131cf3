"""A policy of day and night hands a simulation's chips to training and back."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.faults.recovery_time import RecoveryRates
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.partition import Partition
from emulator.specs.training_recipe import TrainingRecipe
from emulator.units import NS_PER_S
from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform
from loadgen.workloads.traffic import Traffic
from serving.errors import LeaseRefused
from serving.server.day_night.controller import TICK_S
from serving.simulator import (
    ReplicaSet,
    Run,
    SchedulerLimits,
    SimulatedDeployment,
    TimedCall,
    drawn_losses,
    simulate,
)
from serving.simulator.day_night import LOOK_S, SimulatedDayNight
from serving.simulator.job_cost import JobCost, JobTerms, best_job
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.wire.control_call import (
    DrainRequest,
    HealRequest,
    InjectRequest,
    ResumeRequest,
    TrainingNote,
)

LIMITS = SchedulerLimits(max_num_seqs=8)
ALONE = SimulatedDeployment.of(
    "trn3-nl72x2", "qwen3-30b-a3b", Partition(chips=16, ep=16, lnc=2), schedulers=LIMITS
)
THREE = replace(
    SimulatedDeployment.of(
        "trn3-nl72x2", "qwen3-30b-a3b", Partition(chips=4, ep=4, lnc=2), schedulers=LIMITS
    ),
    replicas=ReplicaSet(count=3, router="least-loaded"),
)
TWO = SimulatedDeployment.of(
    "trn3-nl72x2",
    "qwen3-30b-a3b",
    Partition(chips=2, ep=2, lnc=2),
    schedulers=LIMITS,
    replicas=ReplicaSet(count=2),
)
LENGTHS = IndependentLengths(prompt=Uniform(least=1, most=900), output=Uniform(least=1, most=40))
GROUP_CHIPS, START_S = 8, 0.5
HOURS = SimulatedDayNight(
    policy="schedule:06:00-18:00",
    day_length_s=48.0,  # an hour is two seconds
    day_start="00:00",
    zone="UTC",
    chips=16,
    group_chips=GROUP_CHIPS,
    lend_groups=1,
    grace_s=0.1,
    slo=Slo.parse("ttft=1s,tpot=30ms@p99"),
    group_requests_per_s=1_000.0,
    group_requests_source="as it was said",
    reading_s=0.5,
    start_s=START_S,
)
BY_ENGINES = replace(HOURS, chips=12, group_chips=4, lend_groups=2)


def traffic_of(*, requests: int, rate_per_s: float, seed: int = 3) -> Traffic:
    return Traffic.drawn(rate_per_s=rate_per_s, lengths=LENGTHS, seed=seed, requests=requests)


SHORT = IndependentLengths(prompt=Uniform(least=1, most=900), output=Uniform(least=1, most=5))
A_DAY = Traffic.drawn(rate_per_s=6.0, lengths=SHORT, seed=3, requests=380)


def cost_of(chips: Sequence[int]) -> JobCost:
    model = ALONE.cost_model
    terms = JobTerms(
        system=model.system,
        model=model.model,
        recipe=TrainingRecipe(lnc=2),
        calibration=model.calibration,
        rates=RecoveryRates(),
    )
    cost = best_job(terms, chips)
    assert cost is not None
    return cost


def times(run: Run) -> list[Any]:
    served = run.served
    seconds = (served.arrival_s, served.first_token_s, served.last_token_s, served.step_end_s)
    return [
        *(np.nan_to_num(each, nan=-1.0).tolist() for each in seconds),
        served.token_request.tolist(),
        served.failed.tolist(),
        served.preemptions,
    ]


def check_whole(run: Run, deployment: SimulatedDeployment) -> None:
    """No request is lost, completed ones have all their tokens, and the joules add up."""
    served, handovers = run.served, run.handovers
    assert handovers is not None
    assert (served.failed ^ served.finished).all()
    tokens = np.bincount(served.token_request, minlength=len(served.traffic))
    wanted = served.traffic.output_tokens
    assert tokens[served.finished].tolist() == wanted[served.finished].tolist()
    parts = (handovers.inference_joules, handovers.training_joules, handovers.handover_joules)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(served.joules)
    chip_s = served.emulated_s * deployment.chips
    assert 0 <= handovers.leased_chip_s < chip_s


def without_notes(calls: Sequence[TimedCall]) -> list[TimedCall]:
    return [each for each in calls if not isinstance(each.call, TrainingNote)]


def noted_joules(run: Run) -> float:
    """Beyond idle chips, of the last note of each lease."""
    last = {
        (each.replica, each.call.lease): each.call.totals
        for each in run.calls
        if isinstance(each.call, TrainingNote)
    }
    (group_chips,) = {
        len(each.call.chips) for each in run.calls if isinstance(each.call, DrainRequest)
    }
    idle_watts = ALONE.cost_model.idle_chip_watts * group_chips
    return sum(each.joules - idle_watts * each.emulated_s for each in last.values())


@pytest.mark.long
def test_a_night_by_hand() -> None:
    """A look every 0.3 s: the group leaves at 12.0 s, is empty by the next, and trains."""
    run = simulate(ALONE, A_DAY, day_night=HOURS)
    cost = cost_of(range(8, 16))
    trains_s = 12.3 + START_S + cost.read.duration_ns / NS_PER_S
    stopped_s = 35.7  # from 35.5 s on, weights would be read beyond the end of the night
    steps = int(np.ceil((stopped_s - trains_s) / cost.step_s))
    saved_s = trains_s + steps * cost.step_s + cost.save.duration_ns / NS_PER_S

    handovers = run.handovers
    assert handovers is not None
    drain, started, note, resume = run.calls
    assert drain == TimedCall(at_s=12.0, call=DrainRequest(chips=tuple(range(8, 16)), grace_s=0.1))
    assert resume.call == ResumeRequest(lease=1)
    assert started.at_s == pytest.approx(trains_s, abs=1e-6)
    assert resume.at_s == note.at_s == pytest.approx(saved_s, abs=1e-6)
    assert isinstance(note.call, TrainingNote)
    assert (note.call.totals.steps, note.call.totals.tokens) == (steps, steps * cost.step_tokens)
    assert handovers.trained_steps == steps > 0
    assert handovers.trained_tokens == note.call.totals.tokens
    assert (handovers.handovers, handovers.job_starts, handovers.undone_tokens) == (2, 1, 0)
    out_s = handovers.leased_chip_s / GROUP_CHIPS
    assert saved_s - 12.3 < out_s < saved_s - 12.0 + 5.0  # weights are read in less
    idle_watts = ALONE.cost_model.idle_chip_watts * GROUP_CHIPS
    length_s = saved_s - 12.3
    beyond = (cost.watts - idle_watts) * steps * cost.step_s + cost.save.joules + cost.read.joules
    assert handovers.training_joules == pytest.approx(idle_watts * length_s + beyond)
    check_whole(run, ALONE)


@pytest.mark.long
def test_the_calls_of_the_policy_by_hand_are_the_same_run() -> None:
    run = simulate(ALONE, A_DAY, day_night=HOURS)
    by_hand = simulate(ALONE, A_DAY, calls=run.calls)
    assert times(by_hand) == times(run)
    assert by_hand.served.joules == run.served.joules
    without = simulate(ALONE, A_DAY, calls=without_notes(run.calls))
    assert run.served.joules == pytest.approx(without.served.joules + noted_joules(run))
    assert noted_joules(run) > 0


@pytest.mark.long
def test_a_policy_that_never_lends_changes_nothing() -> None:
    traffic = traffic_of(requests=120, rate_per_s=60.0)
    plain = simulate(THREE, traffic)
    run = simulate(THREE, traffic, day_night=replace(BY_ENGINES, policy="never"))
    assert times(run) == times(plain)
    assert run.served.joules == pytest.approx(plain.served.joules)
    assert run.calls == ()
    assert plain.handovers is None


@pytest.mark.slow
def test_a_quantile_calls_a_group_back() -> None:
    """Two in three engines leave while few requests come; a burst takes them back."""
    few, many = (
        Traffic.drawn(rate_per_s=rate_per_s, lengths=SHORT, seed=3, requests=requests)
        for rate_per_s, requests in ((4.0, 120), (40.0, 1_000))
    )
    burst_s = float(few.arrival_s[-1])
    traffic = Traffic(
        arrival_s=np.concatenate([few.arrival_s, burst_s + many.arrival_s]),
        prompt_tokens=np.concatenate([few.prompt_tokens, many.prompt_tokens]),
        output_tokens=np.concatenate([few.output_tokens, many.output_tokens]),
    )
    asked = replace(
        BY_ENGINES,
        policy="quantile:0.985,warm=0s,dwell=0s",
        day_length_s=288.0,  # a bucket of five minutes is a second
        group_requests_per_s=30.0,
    )
    run = simulate(THREE, traffic, day_night=asked)
    leaves, returns = (
        [each for each in run.calls if isinstance(each.call, kind)]
        for kind in (DrainRequest, ResumeRequest)
    )
    assert {each.replica for each in leaves} == {1, 2}
    cost = cost_of(range(8))  # of both
    seen_s, saved_s = 1.0 + 2 * LOOK_S, cost.step_s + cost.save.duration_ns / NS_PER_S
    called_s = min(each.at_s for each in returns if each.at_s > burst_s)
    assert saved_s - cost.step_s < called_s - burst_s < seen_s + saved_s
    check_whole(run, THREE)


@pytest.mark.long
@settings(max_examples=2)
@given(
    seed=st.integers(0, 999),
    policy=st.sampled_from(
        ["fixed:1", "schedule:01:00-02:00,03:00-04:00;dwell=0s", "demand:warm=0s,dwell=30m"]
    ),
    router=st.sampled_from(["round-robin", "least-loaded", "prefix-aware"]),
    engines=st.booleans(),
)
@example(seed=0, policy="fixed:1", router="round-robin", engines=True)  # notes at the very end
def test_a_seeded_day_loses_nothing_and_is_its_calls(
    seed: int, policy: str, router: str, engines: bool
) -> None:
    asked = replace(
        BY_ENGINES if engines else HOURS,
        policy=policy,
        grace_s=0.02,
        reading_s=0.1,
        start_s=0.0,
        group_requests_per_s=30.0,
    )
    deployment = ALONE
    if engines:
        deployment = replace(THREE, replicas=ReplicaSet(count=3, router=router))
    traffic = traffic_of(requests=400, rate_per_s=40.0, seed=seed)
    run = simulate(deployment, traffic, day_night=asked)

    check_whole(run, deployment)
    assert run.served.finished.all()
    by_hand = simulate(deployment, traffic, calls=run.calls)
    assert times(by_hand) == times(run)
    assert by_hand.served.joules == pytest.approx(run.served.joules)


@pytest.mark.slow
@settings(max_examples=2)
@given(seed=st.integers(0, 999), engines=st.booleans())
def test_faults_on_a_day_lose_no_request_without_a_word(seed: int, engines: bool) -> None:
    deployment, asked = (THREE, BY_ENGINES) if engines else (ALONE, HOURS)
    asked = replace(asked, policy="fixed:1", start_s=0.0)
    losses = drawn_losses(deployment.partitions, every_s=2.0, repair_s=1.5, seed=seed)
    traffic = traffic_of(requests=300, rate_per_s=40.0, seed=seed)
    run = simulate(deployment, traffic, day_night=asked, calls=losses, timeout_s=20.0)
    assert (run.served.failed ^ run.served.finished).all()
    again = simulate(deployment, traffic, day_night=asked, calls=losses, timeout_s=20.0)
    assert times(again) == times(run)
    assert again.handovers == run.handovers


@pytest.mark.long
def test_a_job_s_energy_is_counted_also_when_it_loses_a_chip() -> None:
    """Killed at once, it has been noted until then: all of its chips', and its lost steps."""
    asked = replace(HOURS, policy="fixed:1", start_s=0.0)
    traffic = Traffic(
        arrival_s=np.array([0.0, 30.0]), prompt_tokens=np.full(2, 9), output_tokens=np.full(2, 4)
    )
    loss = InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=9))
    plain = simulate(ALONE, traffic, day_night=asked).handovers
    run = simulate(
        ALONE, traffic, day_night=asked, calls=[TimedCall(at_s=20.0, call=loss, replica=0)]
    )
    handovers = run.handovers
    assert plain is not None
    assert handovers is not None
    watts = plain.training_joules / plain.leased_chip_s
    until_loss_s = 20.0 - 2 * LOOK_S
    assert handovers.training_joules > 0.9 * watts * GROUP_CHIPS * until_loss_s
    assert handovers.undone_tokens > 0
    assert handovers.trained_steps * cost_of(range(8)).step_tokens == handovers.trained_tokens


@pytest.mark.long
def test_a_group_with_a_lost_chip_lends_the_others() -> None:
    asked = replace(HOURS, policy="fixed:1")
    traffic = Traffic(
        arrival_s=np.array([0.0, 40.0]), prompt_tokens=np.full(2, 9), output_tokens=np.full(2, 4)
    )
    loss = InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=9))
    calls = [TimedCall(at_s=0.0, call=loss, replica=0)]
    run = simulate(ALONE, traffic, day_night=asked, calls=calls)

    handovers = run.handovers
    assert handovers is not None
    assert (handovers.refused, handovers.handovers, handovers.job_starts) == (0, 1, 1)
    cost = cost_of([8, *range(10, 16)])
    assert cost.chips == GROUP_CHIPS - 1
    assert handovers.trained_tokens == handovers.trained_steps * cost.step_tokens > 0
    chips = handovers.leased_chip_s / run.served.emulated_s
    assert chips == pytest.approx(GROUP_CHIPS - 1, rel=0.05)


@pytest.mark.long
def test_a_night_after_the_last_step_counts_no_negative_time() -> None:
    traffic = Traffic(
        arrival_s=np.array([0.0, 500.0]), prompt_tokens=np.full(2, 9), output_tokens=np.full(2, 4)
    )
    asked = replace(BY_ENGINES, policy="fixed:1", start_s=0.0)
    run = simulate(THREE, traffic, day_night=asked, until_s=100.0)
    handovers = run.handovers
    assert handovers is not None
    assert handovers.leased_chip_s > 90 * BY_ENGINES.group_chips
    assert handovers.inference_joules > 0
    assert handovers.training_joules > 0


# A whole engine of several, by calls.


@dataclass
class OpenEngines:
    """A router by turns that notes how many engines it could choose from, by request."""

    seen: dict[int, int] = field(default_factory=dict)

    def __call__(self, request: int, engines: Sequence[LockstepSchedulers]) -> int:
        self.seen[request] = len(engines)
        return request % len(engines)


def leave(at_s: float, replica: int, *, grace_s: float = 0.1) -> TimedCall:
    chips = tuple(range(TWO.cost_model.partition.chips))
    call = DrainRequest(chips=chips, grace_s=grace_s, purpose="maintenance")
    return TimedCall(at_s=at_s, call=call, replica=replica)


def back(at_s: float, replica: int) -> TimedCall:
    return TimedCall(at_s=at_s, call=ResumeRequest(lease=1), replica=replica)


@pytest.mark.long
def test_an_engine_s_requests_move_when_it_leaves_and_come_again_when_it_is_back() -> None:
    """A long reply is on each of two engines; the second leaves after its grace."""
    arrival_s = np.array([0.0, 0.0, 0.5, 0.9, 1.2, 9.0, 9.5])
    traffic = Traffic(
        arrival_s=arrival_s,
        prompt_tokens=np.full(7, 100),
        output_tokens=np.array([400, 400, 4, 4, 4, 4, 4]),
    )
    router = OpenEngines()
    deployment = replace(TWO, replicas=ReplicaSet(count=2, router=router))
    calls = [leave(0.8, 1, grace_s=0.2), back(2.0, 1)]
    plain = simulate(TWO, traffic).served
    assert (plain.last_token_s[:2] > 1.1).all()
    served = simulate(deployment, traffic, calls=calls).served

    assert served.finished.all()
    assert np.bincount(served.token_request).tolist() == traffic.output_tokens.tolist()
    assert served.preemptions == 1  # the long reply of the second engine
    assert served.last_token_s[1] > plain.last_token_s[1]
    assert router.seen == {0: 2, 1: 1, 2: 2, 3: 1, 4: 1, 5: 2, 6: 2}


def test_engines_wait_for_those_that_leave_by_the_last_call() -> None:
    """Both have a long reply; the second's moves in the middle of the first's, and joins it."""
    arrival_s = np.array([0.0, 0.0])
    traffic = Traffic(
        arrival_s=arrival_s, prompt_tokens=np.full(2, 100), output_tokens=np.full(2, 400)
    )
    served = simulate(TWO, traffic, calls=[leave(0.4, 1, grace_s=0.1)]).served
    later = simulate(TWO, traffic, calls=[leave(0.4, 1, grace_s=0.1), back(99.0, 1)]).served
    assert served.preemptions == later.preemptions == 1
    assert served.last_token_s.tolist() == later.last_token_s.tolist()
    assert served.last_token_s[1] < served.last_token_s[0] + 0.6


def test_requests_that_come_during_the_last_step_go_to_the_others_at_once() -> None:
    traffic = Traffic(
        arrival_s=np.array([0.0, 0.0, 0.4001, 0.4002, 0.4003, 0.4004]),
        prompt_tokens=np.array([100, 100, 900, 900, 900, 900]),
        output_tokens=np.array([100, 100, 2, 2, 2, 2]),
    )
    served = simulate(TWO, traffic, calls=[leave(0.4005, 1, grace_s=5.0)]).served
    assert served.finished.all()
    assert (served.ttft_s[2:] < 0.5).all()  # none waits for the end of the grace


def test_the_last_engine_that_serves_does_not_leave() -> None:
    traffic = traffic_of(requests=60, rate_per_s=20.0)
    with pytest.raises(LeaseRefused, match="at least one other one stays up"):
        simulate(TWO, traffic, calls=[leave(0.5, 0), leave(1.0, 1)])


@pytest.mark.long
def test_an_engine_leaves_by_one_lease_or_keeps_a_rank() -> None:
    """Of two leases its requests would be nowhere's."""
    eight = SimulatedDeployment.of(
        "trn3-nl72x2",
        "qwen3-30b-a3b",
        Partition(chips=8, ep=8, lnc=2),
        replicas=ReplicaSet(count=2),
    )
    calls = [
        replace(leave(at_s, 1), call=DrainRequest(chips=chips, grace_s=0.1, purpose="maintenance"))
        for at_s, chips in ((0.5, (0, 1, 2, 3)), (1.0, (4, 5, 6, 7)))
    ]
    traffic = traffic_of(requests=30, rate_per_s=20.0)
    assert simulate(eight, traffic, calls=calls[:1]).served.finished.all()
    with pytest.raises(LeaseRefused, match="at least one other one stays up"):
        simulate(eight, traffic, calls=calls)


@pytest.mark.long
def test_engines_whose_prompts_others_compute_may_leave_too() -> None:
    prefill = replace(THREE, replicas=ReplicaSet(count=1))
    deployment = replace(THREE, prefill=prefill)
    asked = replace(BY_ENGINES, policy="fixed:1", start_s=0.0, grace_s=0.0)
    traffic = traffic_of(requests=150, rate_per_s=40.0)
    run = simulate(deployment, traffic, day_night=asked)
    check_whole(run, deployment)
    assert run.served.finished.all()
    assert {each.replica for each in run.calls} == {1, 2}


@pytest.mark.long
def test_a_chip_that_is_lost_while_its_engine_is_away_calls_nothing_back() -> None:
    traffic = traffic_of(requests=100, rate_per_s=20.0)
    fault = InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=0))
    struck = [
        leave(0.5, 1),
        TimedCall(at_s=1.5, call=fault, replica=1),
        TimedCall(at_s=2.0, call=HealRequest(chip=0), replica=1),
        back(2.5, 1),
    ]
    router = OpenEngines()
    deployment = replace(TWO, replicas=ReplicaSet(count=2, router=router))
    served = simulate(deployment, traffic, calls=struck).served
    assert served.finished.all()
    away = (traffic.arrival_s > 1.0) & (traffic.arrival_s < 2.5)
    assert {router.seen[request] for request in np.flatnonzero(away).tolist()} == {1}
    assert router.seen[99] == 2


# What cannot be.


@pytest.mark.parametrize(
    ("deployment", "wrong", "says"),
    [
        (ALONE, replace(HOURS, policy="manual"), "policy=manual: expected one that decides"),
        (ALONE, replace(HOURS, chips=18), "chips=18: expected 16, of all engines"),
        (
            ALONE,
            replace(HOURS, policy="demand", group_requests_per_s=None),
            "policy=demand: expected --group-requests-per-s",
        ),
        (
            ALONE,
            replace(HOURS, group_chips=4),
            "lend_chips=4: expected more, into which a training state .* it needs 5 chips",
        ),
        (
            THREE,
            replace(BY_ENGINES, group_chips=2, lend_groups=3),
            "group_chips=2: expected 4, all of an engine, where there are 3",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    deployment: SimulatedDeployment, wrong: SimulatedDayNight, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        simulate(deployment, traffic_of(requests=2, rate_per_s=1.0), day_night=wrong)
    assert "\n" not in str(refused.value)


def test_a_look_is_a_server_s() -> None:
    assert LOOK_S == TICK_S
