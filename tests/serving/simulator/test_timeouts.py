"""Clients that give their requests up."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.specs.partition import Partition
from emulator.ultraserver.step_cost import StepCost
from emulator.units import NS_PER_S
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform
from loadgen.workloads.traffic import ClosedLoops, Sessions, Traffic
from serving.simulator import ReplicaSet, SchedulerLimits, SimulatedDeployment, simulate
from serving.traffic.serving_run import Ending

DEPLOYMENT = SimulatedDeployment.of(
    "trn3-nl72x2",
    "qwen3-30b-a3b",
    Partition(chips=2, tp=1, ep=2, lnc=2),
    schedulers=SchedulerLimits(max_num_seqs=4),
)
LENGTHS = IndependentLengths(prompt=Uniform(least=1, most=900), output=Uniform(least=1, most=40))


@pytest.mark.long
def test_a_timeout_that_nothing_reaches_changes_nothing() -> None:
    traffic = Traffic.drawn(rate_per_s=5, lengths=LENGTHS, seed=1, requests=40)
    plain, timed = simulate(DEPLOYMENT, traffic), simulate(DEPLOYMENT, traffic, timeout_s=1e6)
    assert timed.served.last_token_s.tolist() == plain.served.last_token_s.tolist()


@pytest.mark.long
@settings(max_examples=15)
@given(
    seed=st.integers(0, 99),
    timeout_s=st.sampled_from([0.05, 0.3, 1.0]),
    replicas=st.integers(1, 2),
)
def test_requests_end_or_are_given_up_in_time(seed: int, timeout_s: float, replicas: int) -> None:
    traffic = Traffic.drawn(rate_per_s=200, lengths=LENGTHS, seed=seed, requests=80)
    deployment = replace(DEPLOYMENT, replicas=ReplicaSet(count=replicas))
    lasted_s = [0.0]

    def see(cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: object) -> None:
        del batch, begin_ns, queues
        lasted_s.append(cost.duration_ns / NS_PER_S)

    served = simulate(deployment, traffic, timeout_s=timeout_s, on_step=see).served
    assert served.ending is Ending.SERVED
    assert (served.finished ^ served.failed).all()
    assert np.nanmax(served.e2e_s, initial=0.0) <= timeout_s + 1e-9
    # Nothing is computed for a client that has been gone for a whole step.
    last_s = np.zeros(len(traffic))
    np.maximum.at(last_s, served.token_request, served.token_s)
    given_up = served.failed & (last_s > 0)
    assert (last_s[given_up] <= traffic.arrival_s[given_up] + timeout_s + max(lasted_s)).all()


def test_turns_after_one_that_was_given_up_never_come() -> None:
    traffic = Traffic(
        arrival_s=np.zeros(4),
        prompt_tokens=np.full(4, 64),
        output_tokens=np.array([4_000, 2, 2, 2]),
        sessions=Sessions(after=np.array([-1, 0, 1, -1]), think_s=np.array([0.0, 1.0, 1.0, 0.0])),
        loops=ClosedLoops.one(4, concurrency=1),
    )
    served = simulate(DEPLOYMENT, traffic, timeout_s=0.5).served
    assert served.failed.tolist() == [True, True, True, False]
    assert np.isnan(served.arrival_s).tolist() == [False, True, True, False]
    assert 0.5 <= served.arrival_s[3] < 0.6  # the next conversation of the closed loop


def test_a_timeout_is_above_0() -> None:
    traffic = Traffic.drawn(rate_per_s=5, lengths=LENGTHS, seed=1, requests=2)
    with pytest.raises(ConfigError, match="timeout_s"):
        simulate(DEPLOYMENT, traffic, timeout_s=0.0)


def test_a_last_token_that_comes_after_its_client_has_left_is_no_end() -> None:
    traffic = Traffic(
        arrival_s=np.zeros(2),
        prompt_tokens=np.array([64, 64]),
        output_tokens=np.array([1, 2]),
        sessions=Sessions(after=np.array([-1, 0]), think_s=np.zeros(2)),
    )
    e2e_s = float(simulate(DEPLOYMENT, traffic).served.e2e_s[0])
    served = simulate(DEPLOYMENT, traffic, timeout_s=e2e_s * 0.999).served
    assert served.failed.tolist() == [True, True]
    assert np.isnan(served.arrival_s).tolist() == [False, True]
