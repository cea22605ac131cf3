"""Faults, repairs and hand-overs in virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.batch import StepBatch
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.partition import Partition
from emulator.ultraserver.step_cost import StepCost
from emulator.units import NS_PER_S
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform
from loadgen.workloads.traffic import Traffic
from serving.engine.scheduler_state import RankQueues
from serving.errors import LeaseRefused
from serving.simulator import (
    ReplicaSet,
    Run,
    SchedulerLimits,
    SimulatedDeployment,
    TimedCall,
    drawn_losses,
    read_timed_calls,
    simulate,
)
from serving.traffic.serving_run import Ending
from serving.wire.control_call import DrainRequest, HealRequest, InjectRequest, ResumeRequest

PARTITION = Partition(chips=8, tp=1, ep=4, lnc=2)
DEPLOYMENT = SimulatedDeployment.of(
    "trn3-nl72x2", "qwen3-30b-a3b", PARTITION, schedulers=SchedulerLimits(max_num_seqs=8)
)
LENGTHS = IndependentLengths(prompt=Uniform(least=1, most=900), output=Uniform(least=1, most=40))
TRAFFIC = Traffic.drawn(rate_per_s=90.0, lengths=LENGTHS, seed=3, requests=360)
LONG_AFTER = TimedCall(at_s=1e6, call=HealRequest())


def lose(at_s: float, chip: int) -> TimedCall:
    fault = Fault(kind=FaultKind.LOSE_CHIP, chip=chip)
    return TimedCall(at_s=at_s, call=InjectRequest(fault=fault))


@dataclass
class BusyRanks:
    """A watcher: begin and ranks of each step."""

    steps: list[tuple[float, set[int]]] = field(default_factory=list)

    def __call__(
        self, cost: StepCost, batch: StepBatch, *, begin_ns: int, queues: tuple[RankQueues, ...]
    ) -> None:
        del cost, queues
        self.steps.append((begin_ns / NS_PER_S, set(batch.rank.tolist())))

    def between(self, begin_s: float, end_s: float) -> set[int]:
        return set().union(*(ranks for at_s, ranks in self.steps if begin_s < at_s < end_s))


def run_with(*calls: TimedCall, traffic: Traffic = TRAFFIC) -> Run:
    return simulate(DEPLOYMENT, traffic, calls=calls)


def test_a_machine_to_which_nothing_happens_changes_nothing() -> None:
    plain, watched = run_with(), run_with(LONG_AFTER)
    assert watched.served.first_token_s.tolist() == plain.served.first_token_s.tolist()
    assert watched.served.last_token_s.tolist() == plain.served.last_token_s.tolist()
    assert watched.served.joules == pytest.approx(plain.served.joules)


def test_a_lost_chip_s_requests_go_on_elsewhere() -> None:
    plain, struck = run_with(), run_with(lose(2.0, 5))
    assert struck.served.finished.all()
    assert struck.served.tokens == plain.served.tokens
    before = plain.served.last_token_s < 2.0
    assert struck.served.last_token_s[before].tolist() == plain.served.last_token_s[before].tolist()
    assert struck.served.preemptions > plain.served.preemptions  # computed again
    assert struck.busy_share < plain.busy_share - 0.05  # it stands still while it recovers


@pytest.mark.long
def test_a_spare_takes_the_seat_of_a_lost_chip() -> None:
    spared = replace(PARTITION, spares=1)
    deployment = SimulatedDeployment.of("trn3-nl72x2", "qwen3-30b-a3b", spared)
    busy = BusyRanks()
    run = simulate(deployment, TRAFFIC, calls=[lose(1.0, 5)], on_step=busy)
    assert run.served.finished.all()
    assert 5 in busy.between(2.5, 9.0)


@pytest.mark.long
def test_chips_leave_for_training_and_come_back() -> None:
    leave = TimedCall(
        at_s=1.0, call=DrainRequest(chips=(4, 5, 6, 7), grace_s=0.3, purpose="maintenance")
    )
    back = TimedCall(at_s=2.5, call=ResumeRequest(lease=1))
    busy = BusyRanks()
    run = simulate(DEPLOYMENT, TRAFFIC, calls=[leave, back], on_step=busy)
    assert run.served.finished.all()
    assert busy.between(1.5, 2.5) == {0, 1, 2, 3}
    assert busy.between(2.5, 9.0) == set(range(8))


@pytest.mark.long
def test_chips_that_stay_wait_for_requests_that_come_much_later() -> None:
    wide = SimulatedDeployment.of("trn3-nl72x2", "qwen3-30b-a3b", replace(PARTITION, ep=8))
    leave = TimedCall(at_s=0.0, call=DrainRequest(chips=(6, 7), grace_s=0.0, purpose="maintenance"))
    sparse = Traffic.drawn(rate_per_s=2.0, lengths=LENGTHS, seed=3, requests=20)
    judged = np.arange(20) >= 5
    run = simulate(wide, sparse, calls=[leave], judged=judged)
    assert run.served.finished[judged].all()
    assert (run.served.first_token_s > sparse.arrival_s)[judged].all()


@pytest.mark.long
def test_without_a_rank_requests_fail() -> None:
    lost = [lose(1.0, chip) for chip in range(8)]
    run = run_with(*lost)
    served = run.served
    assert served.ending is Ending.SERVED
    assert (served.failed ^ served.finished).all()
    came_after = TRAFFIC.arrival_s > 1.5
    assert served.failed[came_after].all()
    assert np.isinf(run.ttft_s[came_after]).all()


def test_other_replicas_do_not_notice() -> None:
    deployment = replace(DEPLOYMENT, replicas=ReplicaSet(count=2))
    plain = simulate(deployment, TRAFFIC).served
    struck = simulate(deployment, TRAFFIC, calls=[replace(lose(2.0, 5), replica=1)]).served
    assert struck.last_token_s[::2].tolist() == plain.last_token_s[::2].tolist()
    assert struck.last_token_s[1::2].tolist() != plain.last_token_s[1::2].tolist()


@pytest.mark.slow
@settings(max_examples=4)
@given(seed=st.integers(0, 999), every_s=st.sampled_from([1.0, 4.0]))
def test_no_request_is_lost(seed: int, every_s: float) -> None:
    calls = drawn_losses([PARTITION], every_s=every_s, repair_s=1.5, seed=seed)
    served = run_with(*calls).served
    assert (served.failed ^ served.finished).all()
    tokens = np.bincount(served.token_request, minlength=len(TRAFFIC))
    assert tokens[served.finished].tolist() == TRAFFIC.output_tokens[served.finished].tolist()
    assert run_with(*calls).served.joules == served.joules


@pytest.mark.long
def test_losses_strike_all_chips_alike() -> None:
    engines = [Partition(chips=4, ep=4, lnc=2, spares=2), Partition(chips=2, ep=2, lnc=2)]
    calls = drawn_losses(engines, every_s=1.0, repair_s=0.1, seed=1)
    struck = [
        (each.replica, each.call.fault.chip)
        for each in calls
        if isinstance(each.call, InjectRequest)
    ]
    known = [(0, chip) for chip in range(6)] + [(1, 0), (1, 1)]
    counts = np.array([struck.count(each) for each in known])

    assert counts.sum() == len(struck) == len(calls) / 2 == 10_000
    assert abs(counts - 1_250).max() < 6 * 1_250**0.5


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        ([replace(LONG_AFTER, replica=1)], ConfigError),
        ([lose(0.1, 99)], ConfigError),
        ([TimedCall(at_s=0.1, call=DrainRequest(chips=tuple(range(8)), grace_s=1))], LeaseRefused),
    ],
)
def test_an_impossible_call_is_refused(calls: Sequence[TimedCall], error: type[Exception]) -> None:
    with pytest.raises(error):
        run_with(*calls)


def test_calls_are_read_from_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text(
        '{"at_s": 1.5, "call": {"method": "inject", "fault": {"kind": "lose-chip", "chip": 5}}}\n'
        '{"at_s": 2, "replica": 1, "call": {"method": "resume", "lease": 1}}\n'
    )
    back = TimedCall(at_s=2.0, call=ResumeRequest(lease=1), replica=1)
    assert read_timed_calls(path) == [lose(1.5, 5), back]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        '{"at_s": -1, "call": {"method": "heal"}}',
        '{"at_s": 1, "call": {"method": "state"}}',
        '{"at_s": 1, "call": {"method": "inject", "fault": {"kind": "lose-chip"}}}',
    ],
)
def test_a_line_that_is_no_call_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text('{"at_s": 1, "call": {"method": "heal"}}\n' + line + "\n")
    with pytest.raises(ConfigError, match=f"{path}:2"):
        read_timed_calls(path)


@pytest.mark.long
def test_a_request_that_comes_as_a_step_ends_is_in_the_next_one_while_chips_leave() -> None:
    leave = TimedCall(
        at_s=1.0, call=DrainRequest(chips=(4, 5, 6, 7), grace_s=0.3, purpose="maintenance")
    )
    came_s = TRAFFIC.arrival_s
    first_s = simulate(DEPLOYMENT, TRAFFIC, calls=[leave]).served.first_token_s

    def first_token_s(request: int, at_s: float) -> float:
        moved = came_s.copy()
        moved[request] = at_s
        run = simulate(DEPLOYMENT, replace(TRAFFIC, arrival_s=moved), calls=[leave])
        return float(run.served.first_token_s[request])

    tried = 0
    for request in range(int(came_s.searchsorted(1.0)) + 1, int(came_s.searchsorted(1.15))):
        ends_s = first_s[:request]
        for end_s in ends_s[(came_s[request - 1] < ends_s) & (ends_s < came_s[request + 1])][:1]:
            assert first_token_s(request, end_s) == first_token_s(request, end_s - 2e-9)
            tried += 1
    assert tried > 3
