"""Steps that are made in one call are those that are made one by one, to the bit.

A run with a watcher of steps makes them one by one.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.partition import Partition
from emulator.units import NS_PER_S
from loadgen.measures.slo import Bound
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform
from loadgen.workloads.traffic import PromptBlocks, Sessions, Traffic
from serving.errors import LeaseRefused
from serving.policy.routing import ROUTERS
from serving.simulator import (
    ReplicaSet,
    Run,
    SchedulerLimits,
    SimulatedDeployment,
    StopSimulation,
    TimedCall,
    simulate,
)
from serving.simulator.run_log import EngineLog, StepTotals
from serving.simulator.simulated_machine import SimulatedMachine
from serving.traffic.serving_run import Ending
from serving.wire.control_call import DrainRequest, HealRequest, InjectRequest, ResumeRequest
from serving.wire.machine_state import FOR_MAINTENANCE

LENGTHS = IndependentLengths(prompt=Uniform(least=1, most=400), output=Uniform(least=1, most=60))
REQUESTS = 60
PREFIX_TOKENS = 64


def deployment_of(schedulers: SchedulerLimits, **others: Any) -> SimulatedDeployment:
    return SimulatedDeployment.of(
        "trn3-nl72x2",
        "qwen3-30b-a3b",
        Partition(chips=2, ep=2, lnc=2),
        schedulers=schedulers,
        **others,
    )


def bits(run: Run) -> dict[str, object]:
    found: dict[str, object] = {}
    for of in (run.served, run):
        for name in of.__slots__:
            value = getattr(of, name)
            if name not in ("traffic", "served"):
                found[name] = value.tobytes() if isinstance(value, np.ndarray) else value
    return found


def both(deployment: SimulatedDeployment, traffic: Traffic, **how: Any) -> tuple[Run, Run]:
    """In one call, and one by one."""
    steps = 0

    def watch(*_: object, **__: object) -> None:
        nonlocal steps
        steps += 1

    one_by_one = simulate(deployment, traffic, on_step=watch, **how)
    assert steps == one_by_one.served.steps
    return simulate(deployment, traffic, **how), one_by_one


def sharing(traffic: Traffic, rng: np.random.Generator) -> Traffic:
    """The same with prompts that begin alike."""
    names = []
    for request, prompt_tokens in enumerate(traffic.prompt_tokens.tolist()):
        family, count = int(rng.integers(0, 3)), -(-prompt_tokens // PREFIX_TOKENS)
        names.append([10 * family + n if n < 4 else 100 * (request + 1) + n for n in range(count)])
    blocks = PromptBlocks.of(names, tokens=PREFIX_TOKENS, prompt_tokens=traffic.prompt_tokens)
    return replace(traffic, blocks=blocks)


@pytest.mark.long
@settings(max_examples=6)
@given(
    seed=st.integers(0, 999),
    replicas=st.integers(1, 3),
    router=st.sampled_from([*ROUTERS]),
    rate_per_s=st.sampled_from([5.0, 60.0, 2_000.0]),
    policy=st.sampled_from(["none", "capped:40", "balanced:4:16:64", "staggered:1"]),
    shares=st.booleans(),
    closed=st.booleans(),
)
def test_every_figure_of_a_run_is_equal(
    seed: int,
    replicas: int,
    router: str,
    rate_per_s: float,
    policy: str,
    shares: bool,
    closed: bool,
) -> None:
    rng = np.random.default_rng(seed)
    traffic = Traffic.drawn(rate_per_s=rate_per_s, lengths=LENGTHS, seed=seed, requests=REQUESTS)
    traffic = sharing(traffic, rng) if shares else traffic
    if closed:
        after = np.where(rng.random(REQUESTS) < 0.4, np.arange(REQUESTS) - 3, -1)
        after = np.where(np.arange(REQUESTS) < 3, -1, after)
        think_s = np.where(after >= 0, rng.choice([0.0, 0.3], REQUESTS), 0.0)
        traffic = replace(traffic, sessions=Sessions(after=after, think_s=think_s))
    deployment = deployment_of(
        SchedulerLimits(
            max_num_seqs=6,
            max_num_batched_tokens=128,
            prefill_policy=policy,
        ),
        replicas=ReplicaSet(count=replicas, router=router),
    )

    blocks = int(rng.integers(40, 120))  # so few that requests are preempted
    deployment = replace(deployment, limits=replace(deployment.limits, kv_blocks_per_rank=blocks))

    ahead, one_by_one = both(deployment, traffic)
    assert bits(ahead) == bits(one_by_one)
    assert ahead.served.finished.all()


@pytest.mark.long
@pytest.mark.parametrize("router", ROUTERS)
def test_engines_in_several_threads_change_nothing_of_each_other_s(router: str) -> None:
    traffic = Traffic.drawn(rate_per_s=400, lengths=LENGTHS, seed=5, requests=500)
    deployment = deployment_of(
        SchedulerLimits(max_num_seqs=16), replicas=ReplicaSet(count=4, router=router)
    )

    ahead, one_by_one = both(deployment, traffic)
    assert bits(ahead) == bits(one_by_one)
    assert bits(simulate(deployment, traffic)) == bits(ahead)


def test_a_run_of_unequal_engines_that_is_stopped_has_them_about_equally_far() -> None:
    requests = np.arange(2_000)
    traffic = Traffic(
        arrival_s=np.zeros(2_000),
        prompt_tokens=np.full(2_000, 50),
        output_tokens=np.where(requests % 2, 400, 20),
    )
    ends_s: list[float] = []

    def look(done: int, emulated_s: float) -> None:
        del done
        ends_s.append(emulated_s)
        if emulated_s > 3.0:
            raise StopSimulation

    deployment = deployment_of(SchedulerLimits(max_num_seqs=16), replicas=ReplicaSet(count=2))
    served = simulate(deployment, traffic, progress=look).served
    assert served.ending is Ending.STOPPED
    assert served.emulated_s < 1.5 * ends_s[-1]


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("until_s", [0.05, 0.7, float("inf")])
def test_so_are_runs_that_end_early(replicas: int, until_s: float) -> None:
    traffic = Traffic.drawn(rate_per_s=90, lengths=LENGTHS, seed=3, requests=REQUESTS)
    deployment = deployment_of(SchedulerLimits(max_num_seqs=3), replicas=ReplicaSet(count=replicas))
    number = np.arange(REQUESTS)
    bounds = (Bound(measure="ttft", limit=50.0, percentile=90.0),)
    for judged in (None, (number >= 20) & (number < 40)):
        for levels in ((), bounds):
            ahead, one_by_one = both(
                deployment, traffic, judged=judged, levels=levels, until_s=until_s
            )
            assert bits(ahead) == bits(one_by_one)


def test_what_needs_more_than_tables_is_made_step_by_step() -> None:
    traffic = Traffic.drawn(rate_per_s=90, lengths=LENGTHS, seed=4, requests=20)
    deployment = deployment_of(SchedulerLimits(max_num_seqs=3), overlap="full")

    ahead, one_by_one = both(deployment, traffic)
    assert bits(ahead) == bits(one_by_one)


def at_once(requests: int, prompt: int, output: int) -> Traffic:
    return Traffic(
        arrival_s=np.zeros(requests),
        prompt_tokens=np.full(requests, prompt),
        output_tokens=np.full(requests, output),
    )


@pytest.mark.long
def test_a_prefill_that_waits_for_its_turn_does_not_decode() -> None:
    deployment = deployment_of(SchedulerLimits(long_prefill_token_threshold=128))
    traffic = replace(at_once(14, 1_024, 300), prompt_tokens=np.array([100] * 2 + [1_024] * 12))
    ahead, one_by_one = both(deployment, traffic)
    assert bits(ahead) == bits(one_by_one)


def test_more_decodes_than_a_step_has_tokens_take_turns() -> None:
    limits = SchedulerLimits(
        max_num_seqs=64, max_num_batched_tokens=64, long_prefill_token_threshold=9
    )
    ahead, one_by_one = both(deployment_of(limits), at_once(120, 20, 90))
    assert bits(ahead) == bits(one_by_one)


@pytest.mark.parametrize("until_s", [0.001, 0.02])
def test_time_is_up_for_each_of_several_engines(until_s: float) -> None:
    deployment = deployment_of(SchedulerLimits(), replicas=ReplicaSet(count=2))
    traffic = Traffic(
        arrival_s=np.array([0.0, 0.002]),
        prompt_tokens=np.array([1_000, 10]),
        output_tokens=np.array([5, 5]),
    )
    ahead, one_by_one = both(deployment, traffic, until_s=until_s)
    assert bits(ahead) == bits(one_by_one)


def test_tables_that_do_not_know_a_repeated_step_learn_it() -> None:
    limits = SchedulerLimits(max_num_seqs=1_024, max_num_batched_tokens=8_192)
    traffic = at_once(1_200, 3, 10)
    ahead = simulate(deployment_of(limits), traffic)  # first: the tables are new
    assert bits(ahead) == bits(both(deployment_of(limits), traffic)[1])


@pytest.mark.long
@given(seed=st.integers(0, 10**6))
def test_so_is_any_run_with_lulls_and_levels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    requests = int(rng.choice([1, 5, 60]))
    lull = np.where(rng.random(requests) < 0.2, rng.random(requests), 0.002)
    traffic = Traffic(
        arrival_s=np.cumsum(lull * rng.integers(0, 2, requests)),
        prompt_tokens=rng.integers(1, int(rng.choice([2, 40, 900])), requests),
        output_tokens=rng.integers(1, int(rng.choice([3, 80])), requests),
    )
    traffic = sharing(traffic, rng) if rng.random() < 0.5 else traffic
    limits = SchedulerLimits(
        max_num_seqs=(seats := int(rng.choice([1, 4, 16]))),
        max_num_batched_tokens=max(seats, int(rng.choice([8, 64, 2_048]))),
        long_prefill_token_threshold=int(rng.choice([0, 5, 100])),
        prefill_policy=str(rng.choice(["none", "capped:40", "balanced:4:16:64"])),
    )
    how: dict[str, Any] = {}
    if rng.random() < 0.3:
        how["until_s"] = float(rng.choice(traffic.arrival_s)) + float(rng.choice([0.0, 0.05]))
    if rng.random() < 0.3:
        how["levels"] = (Bound(measure="ttft", limit=50.0, percentile=90.0),)
    if rng.random() < 0.3:
        how["progress"] = lambda *_: None
    replicas = ReplicaSet(count=int(rng.choice([1, 2, 5])), router=str(rng.choice([*ROUTERS])))
    ahead, one_by_one = both(deployment_of(limits, replicas=replicas), traffic, **how)
    assert bits(ahead) == bits(one_by_one)


MODELS = {  # with a window, with a latent, and with attention that cores divide by requests
    "gpt-oss-120b": Partition(chips=4, ep=4, lnc=2),
    "deepseek-v3": Partition(chips=16, ep=16, lnc=2),
    "qwen3-30b-a3b": Partition(chips=2, ep=2, lnc=2, attention_split="batch"),
}


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_requests_that_are_counted_together_are_those_counted_one_by_one(seed: int) -> None:
    """Long enough to pass tiles, blocks and windows; some run out of blocks, seats or tokens."""
    rng = np.random.default_rng(seed)
    requests = int(rng.choice([3, 40, 150]))
    gaps_s = rng.exponential(float(rng.choice([0.002, 0.02, 0.2])), requests)
    traffic = Traffic(
        arrival_s=np.cumsum(gaps_s),
        prompt_tokens=rng.integers(1, int(rng.choice([30, 300, 3_000])), requests),
        output_tokens=rng.integers(1, int(rng.choice([3, 80, 400])), requests),
    )
    model = str(rng.choice([*MODELS]))
    limits = SchedulerLimits(
        max_num_seqs=(seats := int(rng.choice([2, 16, 64]))),
        max_num_batched_tokens=max(seats, int(rng.choice([16, 256, 2_048]))),
        long_prefill_token_threshold=int(rng.choice([0, 0, 60])),
        prefill_policy=str(rng.choice(["none", "capped:40", "balanced:4:16:64"])),
        block_tokens=int(rng.choice([16, 32])),
    )
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        model,
        MODELS[model],
        schedulers=limits,
        replicas=ReplicaSet(count=int(rng.choice([1, 2]))),
    )
    if rng.random() < 0.4:  # so few that requests are preempted
        longest = int((traffic.prompt_tokens + traffic.output_tokens).max())
        blocks = 2 + int(longest / limits.block_tokens * rng.uniform(1.2, 4.0))
        own = replace(deployment.limits, kv_blocks_per_rank=blocks)
        deployment = replace(deployment, limits=own)
    ahead, one_by_one = both(deployment, traffic)
    assert bits(ahead) == bits(one_by_one)

    totals = bits(simulate(deployment, traffic, logs=False))
    logged = bits(ahead)
    for name in ("token_request", "step_end_s", "step_tokens", "totals", "throttled_share"):
        del totals[name], logged[name]
    assert totals == logged


@pytest.mark.parametrize("ahead", [True, False])
def test_totals_are_those_of_the_log(ahead: bool) -> None:
    traffic = Traffic.drawn(rate_per_s=90, lengths=LENGTHS, seed=6, requests=REQUESTS)
    deployment = deployment_of(SchedulerLimits(max_num_seqs=8), replicas=ReplicaSet(count=2))
    how: dict[str, Any] = {} if ahead else {"on_step": lambda *_, **__: None}

    logged, totals = (simulate(deployment, traffic, logs=logs, **how) for logs in (True, False))
    for name in ("steps", "tokens", "emulated_s", "joules", "busy_s", "hit_tokens"):
        assert getattr(totals.served, name) == getattr(logged.served, name)
    assert np.array_equal(totals.served.last_token_s, logged.served.last_token_s)
    assert (totals.chip_watts, totals.busy_share) == (logged.chip_watts, logged.busy_share)
    assert len(totals.served.token_request) == 0 < totals.served.tokens


def test_a_log_that_keeps_no_steps_does_not_grow_with_them() -> None:
    steps = 50_000
    log = EngineLog(tokens_max=steps, idle_watts=1.0, keeps=False)
    for step in range(steps):
        log.make_room()
        log.steps[log.counts[0]] = (step, 1, 0.0, 1.0, 2)
        log.counts[0] += 1
    assert len(log.steps) < steps
    assert log.ended == steps
    assert log.totals == StepTotals(steps=steps, tokens=2 * steps, busy_ns=steps, end_ns=steps)


def test_a_part_is_judged_without_tokens_as_with_them() -> None:
    traffic = Traffic.drawn(rate_per_s=90, lengths=LENGTHS, seed=6, requests=REQUESTS)
    deployment = deployment_of(SchedulerLimits(max_num_seqs=8))
    judged = np.arange(REQUESTS) % 3 == 1
    logged, totals = (
        simulate(deployment, traffic, logs=logs, judged=judged, window_s=(0.1, 0.4))
        for logs in (True, False)
    )
    for name in ("steps", "tokens", "emulated_s", "joules", "busy_s"):
        assert getattr(totals.served, name) == getattr(logged.served, name)
    for name in ("chip_watts", "busy_share", "throttled_share"):
        assert getattr(totals, name) == getattr(logged, name)
    assert totals.e2e_s.tolist() == logged.e2e_s.tolist()


def test_totals_are_not_of_requests_that_wait_for_others() -> None:
    sessions = Sessions(after=np.array([-1, 0]), think_s=np.zeros(2))
    traffic = replace(at_once(2, 3, 3), sessions=sessions)
    with pytest.raises(ConfigError, match="logs"):
        simulate(deployment_of(SchedulerLimits()), traffic, logs=False)


@pytest.mark.long
@pytest.mark.parametrize("comes_back_s", [None, 0.3])
def test_steps_of_an_engine_whose_chips_have_left_go_ahead(
    comes_back_s: float | None,
) -> None:
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        "qwen3-30b-a3b",
        Partition(chips=16, ep=16, lnc=2),
        schedulers=SchedulerLimits(max_num_seqs=8),
    )
    leaves = DrainRequest(chips=tuple(range(8, 16)), grace_s=0.0, purpose=FOR_MAINTENANCE)
    calls = [TimedCall(at_s=0.0, call=leaves)]
    if comes_back_s is not None:
        calls.append(TimedCall(at_s=comes_back_s, call=ResumeRequest(lease=1)))
    traffic = Traffic.drawn(rate_per_s=60.0, lengths=LENGTHS, seed=2, requests=REQUESTS)
    ahead, one_by_one = both(deployment, traffic, calls=calls)
    joules = ("joules", "chip_watts")  # those of steps ahead are added beside the ledger
    found, wanted = bits(ahead), bits(one_by_one)
    assert [found.pop(name) for name in joules] == pytest.approx([wanted.pop(n) for n in joules])
    assert found == wanted

    machine = SimulatedMachine(deployment)
    machine.take(leaves, 0, (), others_serve=False)
    machine.idle(0, ())
    machine.idle(NS_PER_S, ())  # the experts have moved
    assert machine.steady_costs is not None, "steps go ahead"


@pytest.mark.slow
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_so_do_they_through_any_hand_overs_and_losses(seed: int) -> None:
    """Groups of 2 chips of 8 leave and come back, and a chip that stays may be lost, for good."""
    rng = np.random.default_rng(seed)
    tp = int(rng.choice([1, 2]))
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        str(rng.choice(["qwen3-30b-a3b", "gpt-oss-120b"])),
        Partition(chips=8, ep=8, tp=tp, lnc=2),
        schedulers=SchedulerLimits(max_num_seqs=int(rng.choice([4, 32]))),
    )
    calls, leases, groups = [], int(rng.integers(1, 3)), rng.permutation(4).tolist()
    for lease, group in enumerate(groups[:leases], start=1):
        at_s = float(rng.choice([0.0, 0.05, rng.random()]))
        leaves = DrainRequest(
            chips=(2 * group, 2 * group + 1),
            grace_s=float(rng.choice([0.0, 0.1])),
            purpose=FOR_MAINTENANCE,
        )
        calls.append((lease + at_s, TimedCall(at_s=lease + at_s, call=leaves)))
        if rng.random() < 0.5:
            back_s = leases + 1.5 + 2.0 * rng.random()
            calls.append((back_s, TimedCall(at_s=back_s, call=ResumeRequest(lease=lease))))
    if rng.random() < 0.5:
        chip, at_s = 2 * groups[-1], float(rng.choice([0.5, leases + 1.2]))
        fault = Fault(kind=FaultKind.LOSE_CHIP, chip=chip)
        calls.append((at_s, TimedCall(at_s=at_s, call=InjectRequest(fault=fault))))
        if rng.random() < 0.5:
            calls.append((5.0, TimedCall(at_s=5.0, call=HealRequest(chip=chip))))
    rate_per_s = float(rng.choice([5.0, 60.0, 400.0]))
    traffic = Traffic.drawn(
        rate_per_s=rate_per_s, lengths=LENGTHS, seed=seed, requests=int(8 * rate_per_s)
    )
    how = {"calls": [call for _, call in sorted(calls, key=lambda each: each[0])]}
    try:
        ahead, one_by_one = both(deployment, traffic, **how)
    except LeaseRefused:
        return  # the experts would not fit on the others
    joules = ("joules", "chip_watts")
    found, wanted = bits(ahead), bits(one_by_one)
    assert [found.pop(n) for n in joules] == pytest.approx(
        [wanted.pop(n) for n in joules], rel=1e-12
    )
    assert found == wanted
