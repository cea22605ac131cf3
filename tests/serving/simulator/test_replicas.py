"""Several engines behind a router: each serves its requests as if it were alone."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.partition import Partition
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform
from loadgen.workloads.traffic import PromptBlocks, Sessions, Traffic
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
from serving.simulator.lockstep_schedulers import LockstepSchedulers
from serving.traffic.serving_run import Ending, ServingRun
from serving.wire.control_call import InjectRequest

DEPLOYMENT = SimulatedDeployment.of(
    "trn3-nl72x2",
    "qwen3-30b-a3b",
    Partition(chips=2, ep=2, lnc=2),
    schedulers=SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=128),
)
LENGTHS = IndependentLengths(prompt=Uniform(least=1, most=300), output=Uniform(least=1, most=20))


def run_on(replicas: ReplicaSet, traffic: Traffic, **how: float) -> Run:
    return simulate(replace(DEPLOYMENT, replicas=replicas), traffic, **how)  # type: ignore[arg-type]


@pytest.mark.long
@settings(max_examples=15)
@given(
    seed=st.integers(0, 99),
    count=st.integers(2, 4),
    rate_per_s=st.sampled_from([20.0, 200.0, 5_000.0]),
)
def test_by_turns_each_replica_s_requests_are_served_as_alone(
    seed: int, count: int, rate_per_s: float
) -> None:
    traffic = Traffic.drawn(rate_per_s=rate_per_s, lengths=LENGTHS, seed=seed, requests=40)
    together = run_on(ReplicaSet(count=count), traffic).served

    assert together.finished.all()
    joules = busy_s = 0.0
    for number in range(count):
        mine = np.arange(number, 40, count)
        alone = simulate(DEPLOYMENT, traffic.chosen(mine)).served
        assert together.first_token_s[mine].tolist() == alone.first_token_s.tolist()
        assert together.last_token_s[mine].tolist() == alone.last_token_s.tolist()
        idle_s = together.emulated_s - alone.emulated_s
        joules += alone.joules + idle_s * DEPLOYMENT.idle_watts
        busy_s += alone.busy_s
    assert together.joules == pytest.approx(joules)
    assert together.busy_s == pytest.approx(busy_s)
    assert (np.diff(together.step_end_s) >= 0).all()


def test_a_function_of_one_s_own_is_a_router() -> None:
    traffic = Traffic.drawn(rate_per_s=500, lengths=LENGTHS, seed=1, requests=30)
    seen: list[int] = []

    def to_the_last(request: int, engines: Sequence[LockstepSchedulers]) -> int:
        seen.append(request)
        return len(engines) - 1

    run = run_on(ReplicaSet(count=3, router=to_the_last), traffic)
    alone = simulate(DEPLOYMENT, traffic)
    assert seen == list(range(30))
    np.testing.assert_array_equal(run.ttft_s, alone.ttft_s)


@pytest.mark.parametrize(
    ("router", "chosen"),
    [("least-loaded", [0, 1, 1, 1, 0]), ("round-robin", [0, 1, 0, 1, 0])],
)
def test_where_requests_go_that_come_within_a_step(router: str, chosen: list[int]) -> None:
    """The first holds 320 tokens, which three more together exceed."""
    traffic = Traffic(
        arrival_s=np.arange(5) * 1e-6,
        prompt_tokens=np.array([320, 110, 110, 101, 10]),
        output_tokens=np.full(5, 20),
    )
    seen: list[list[int]] = []

    def kept(request: int, engines: Sequence[LockstepSchedulers]) -> int:
        number = ReplicaSet(count=2, router=router).choose(request, engines, arrived=request)
        seen.append([engine.load_tokens for engine in engines])
        went.append(number)
        return number

    went: list[int] = []
    run_on(ReplicaSet(count=2, router=kept), traffic)
    assert went == chosen
    assert seen[1] == [320, 0]
    named = run_on(ReplicaSet(count=2, router=router), traffic)
    again = run_on(ReplicaSet(count=2, router=lambda request, _: chosen[request]), traffic)
    np.testing.assert_array_equal(named.ttft_s, again.ttft_s)


@pytest.mark.long
def test_prompts_that_begin_alike_go_where_their_beginning_is() -> None:
    requests = 12
    traffic = Traffic(
        arrival_s=np.arange(requests) * 1.0,  # each is done before the next comes
        prompt_tokens=np.full(requests, 256),
        output_tokens=np.full(requests, 2),
        blocks=PromptBlocks.of(
            [(number % 2,) for number in range(requests)],
            tokens=192,
            prompt_tokens=np.full(requests, 256),
        ),
    )
    # Without equal turns of the two kinds, by turns would be as good.
    traffic = traffic.chosen(np.array([0, 1, 3, 4, 5, 7, 8, 9, 11]))
    by_turns, aware = (
        run_on(ReplicaSet(count=2, router=router), traffic).served.hit_tokens
        for router in ("round-robin", "prefix-aware")
    )
    assert aware == 7 * 192  # all but the first of each kind
    assert by_turns < aware


def test_a_run_that_is_stopped_ends_the_steps_that_have_begun() -> None:
    traffic = Traffic.drawn(rate_per_s=200, lengths=LENGTHS, seed=3, requests=60)
    whole = run_on(ReplicaSet(count=3), traffic).served
    for until_s in whole.emulated_s * np.array([0.001, 0.01, 0.5]):
        check_part(whole, traffic, float(until_s))


def check_part(whole: ServingRun, traffic: Traffic, until_s: float) -> None:
    part = run_on(ReplicaSet(count=3), traffic, until_s=until_s).served

    assert not part.steps or part.emulated_s >= until_s
    steps = int((whole.step_end_s <= until_s).sum())
    assert part.step_end_s[:steps].tolist() == whole.step_end_s[:steps].tolist()
    assert steps <= part.steps <= steps + 3


def test_steps_under_way_are_ended_when_the_judged_have_their_tokens() -> None:
    traffic = Traffic.drawn(rate_per_s=500, lengths=LENGTHS, seed=5, requests=40)
    judged = np.arange(40) == 3
    run = simulate(replace(DEPLOYMENT, replicas=ReplicaSet(count=2)), traffic, judged=judged)

    served = run.served
    assert served.ending is Ending.JUDGED
    idle_s = 2 * served.emulated_s - served.busy_s
    assert 0 <= idle_s < served.emulated_s
    assert served.joules >= 2 * served.emulated_s * DEPLOYMENT.idle_watts


@pytest.mark.parametrize("tokens", [31, 32, 33, 64])
def test_a_run_that_is_stopped_at_its_last_token_is_served(tokens: int) -> None:
    traffic = Traffic(
        arrival_s=np.zeros(1), prompt_tokens=np.array([9]), output_tokens=np.array([tokens])
    )

    def stop(done: int, emulated_s: float) -> None:
        del done, emulated_s
        raise StopSimulation

    def one_by_one(*_: object, **__: object) -> None:
        """A watcher, so that steps are not made many in a call, which nothing stops."""

    run = simulate(DEPLOYMENT, traffic, progress=stop, on_step=one_by_one).served
    assert run.ending is (Ending.SERVED if tokens <= 32 else Ending.STOPPED)
    assert run.tokens == min(tokens, 32)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"count": 0}, "replicas=0: expected at least 1"),
        ({"router": "best"}, "router=best: expected one of round-robin"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ReplicaSet(**wrong)  # type: ignore[arg-type]


def test_by_turns_goes_by_arrival_not_by_number() -> None:
    """Conversations stand one after the other in the table, and begin together."""
    traffic = Traffic(
        arrival_s=np.zeros(4),
        prompt_tokens=np.full(4, 50),
        output_tokens=np.full(4, 2),
        sessions=Sessions(after=np.array([-1, 0, -1, 2]), think_s=np.array([0.0, 1.0, 0.0, 1.0])),
    )
    first_s = run_on(ReplicaSet(count=2), traffic).served.first_token_s
    # Each first turn has an engine for itself, and so has each second one.
    assert first_s[0] == first_s[2]
    assert first_s[1] == first_s[3]


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_an_engine_that_is_down_gets_no_requests(router: str) -> None:
    traffic = Traffic.drawn(rate_per_s=20, lengths=LENGTHS, seed=1, requests=60)
    losses = [
        TimedCall(at_s=0.5, call=InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=chip)))
        for chip in (0, 1)
    ]
    deployment = replace(DEPLOYMENT, replicas=ReplicaSet(count=2, router=router))
    served = simulate(deployment, traffic, calls=losses).served
    came_after = traffic.arrival_s > 1.5
    assert served.finished[came_after].all()
    assert served.failed.sum() < 12


def test_a_router_that_names_no_engine_is_refused() -> None:
    traffic = Traffic.drawn(rate_per_s=20, lengths=LENGTHS, seed=1, requests=2)
    with pytest.raises(ConfigError, match="router=2"):
        run_on(ReplicaSet(count=2, router=lambda *_: 2), traffic)
