"""Requests that wait for the end of others: turns of a conversation, and closed loops."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.arrays import Int64s
from emulator.specs.partition import Partition
from loadgen.arrivals.closed_loop import ClosedLoop
from loadgen.arrivals.piecewise_linear import PiecewiseLinear
from loadgen.errors import OptionError
from loadgen.workloads.traffic import ClosedLoops, Sessions, Traffic
from serving.simulator import ReplicaSet, SimulatedDeployment, simulate
from serving.simulator.request_arrivals import SessionTurns

DEPLOYMENT = SimulatedDeployment.of(
    "trn3-nl72x2", "qwen3-30b-a3b", Partition(chips=2, tp=1, ep=2, lnc=2)
)


def traffic(arrival_s: list[float], after: list[int], think_s: list[float]) -> Traffic:
    count = len(arrival_s)
    return Traffic(
        arrival_s=np.array(arrival_s),
        prompt_tokens=np.full(count, 64),
        output_tokens=np.full(count, 4),
        sessions=Sessions(after=np.array(after), think_s=np.array(think_s)),
    )


def drawn(data: st.DataObject, count: int, *, most: int) -> Int64s:
    each = st.integers(1, most)
    return np.array(data.draw(st.lists(each, min_size=count, max_size=count)))


def test_a_turn_arrives_a_while_after_the_turn_before_it() -> None:
    asked = traffic([0.0, 0.0, 1.0, 1.0], [-1, 0, -1, 1], [0.0, 2.0, 0.0, 0.5])
    served = simulate(DEPLOYMENT, asked).served
    last_s = served.last_token_s
    expected_s = [0.0, last_s[0] + 2.0, 1.0, last_s[1] + 0.5]
    assert served.arrival_s == pytest.approx(expected_s, abs=1e-9)
    assert served.finished.all()


def test_a_closed_loop_has_as_many_requests_open_as_it_says() -> None:
    asked = Traffic(
        arrival_s=np.zeros(7),
        prompt_tokens=np.array([64, 900, 64, 64, 300, 64, 64]),
        output_tokens=np.array([30, 4, 3, 8, 5, 2, 9]),
        loops=ClosedLoops.one(7, concurrency=2),
    )
    served = simulate(DEPLOYMENT, asked).served
    arrival_s, last_s = served.arrival_s, served.last_token_s
    assert arrival_s[:2].tolist() == [0.0, 0.0]
    # The next begins whenever one ends, in order.
    assert arrival_s[2:] == pytest.approx(np.sort(last_s)[:5], abs=1e-9)


def test_a_closed_loop_of_conversations_begins_one_when_one_ends() -> None:
    asked = replace(
        traffic([0.0] * 4, [-1, 0, -1, 2], [0.0, 1.0, 0.0, 1.0]),
        loops=ClosedLoops.one(4, concurrency=1),
    )
    served = simulate(DEPLOYMENT, asked).served
    assert served.arrival_s[2] == pytest.approx(served.last_token_s[1], abs=1e-9)


@pytest.mark.long
@given(data=st.data())
def test_known_arrivals_at_the_same_times_are_served_alike(data: st.DataObject) -> None:
    """Whatever depends on what, the run is the one that those arrivals give by themselves."""
    count = data.draw(st.integers(1, 12))
    starts_s = sorted(data.draw(st.lists(st.floats(0, 0.2), min_size=count, max_size=count)))
    follows = [data.draw(st.booleans()) and number > 0 for number in range(count)]
    after, begun_s = [], []
    for number, turn in enumerate(follows):
        after.append(number - 1 if turn else -1)
        begun_s.append(begun_s[-1] if turn else starts_s[number])
    asked = replace(
        traffic(begun_s, after, [0.01 * each for each in follows]),
        prompt_tokens=np.array(
            data.draw(st.lists(st.integers(1, 600), min_size=count, max_size=count))
        ),
        output_tokens=np.array(
            data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
        ),
        loops=data.draw(
            st.sampled_from([None, *(ClosedLoops.one(count, concurrency=n) for n in (1, 2, 3))])
        ),
    )
    deployment = replace(
        DEPLOYMENT, replicas=ReplicaSet(count=data.draw(st.integers(1, 2)), router="least-loaded")
    )
    served = simulate(deployment, asked).served
    order = np.lexsort((np.arange(count), served.arrival_s))
    known = Traffic(
        arrival_s=served.arrival_s[order],
        prompt_tokens=asked.prompt_tokens[order],
        output_tokens=asked.output_tokens[order],
    )
    alone = simulate(deployment, known).served
    assert alone.first_token_s.tolist() == served.first_token_s[order].tolist()
    assert alone.last_token_s.tolist() == served.last_token_s[order].tolist()
    assert alone.joules == served.joules


def test_a_run_that_ends_early_has_no_arrivals_of_what_waits() -> None:
    asked = traffic([0.0, 0.0, 0.0], [-1, 0, 1], [0.0, 5.0, 5.0])
    served = simulate(DEPLOYMENT, asked, until_s=3.0).served
    assert np.isnan(served.arrival_s).tolist() == [False, True, True]


@pytest.mark.parametrize("after", [[-1, 1], [-1, 0, 5]])
def test_what_is_waited_for_is_before(after: list[int]) -> None:
    with pytest.raises(OptionError, match="after"):
        Sessions(after=np.array(after), think_s=np.zeros(len(after)))


@given(data=st.data())
def test_a_request_arrives_after_the_last_of_all_that_it_waits_for(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 12))
    waits = [
        data.draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        for number in range(count)
    ]
    # All that one waits for are of its session, which has one first request.
    waits = [{0} if number and not each else each for number, each in enumerate(waits)]
    first = [min(each, default=-1) for each in waits]
    also = [(number, other) for number, each in enumerate(waits) for other in sorted(each)[1:]]
    asked = replace(
        traffic([0.0] * count, first, [0.01 * (each >= 0) for each in first]),
        output_tokens=np.array(
            data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
        ),
    )
    assert asked.sessions is not None
    pairs = np.array(also, dtype=np.int64).reshape(-1, 2)
    asked = replace(asked, sessions=replace(asked.sessions, also=pairs))
    served = simulate(DEPLOYMENT, asked).served

    assert served.finished.all()
    for number, others in enumerate(waits):
        ends_s = [served.last_token_s[other] + 0.01 for other in others]
        assert served.arrival_s[number] == pytest.approx(max(ends_s, default=0.0), abs=1e-9)


def test_a_closed_loop_of_fan_outs_begins_one_when_all_of_one_have_ended() -> None:
    # Two sessions: a plan, two calls at once of 3 and 40 tokens, nothing that joins them.
    asked = replace(
        traffic([0.0] * 6, [-1, 0, 0, -1, 3, 3], [0.0] * 6),
        output_tokens=np.array([2, 3, 40, 2, 3, 3]),
        loops=ClosedLoops.one(6, concurrency=1),
    )
    served = simulate(DEPLOYMENT, asked).served
    assert served.arrival_s[3] == pytest.approx(served.last_token_s[2], abs=1e-9)
    assert served.last_token_s[2] > served.last_token_s[1]


def test_what_waits_for_a_request_that_fails_never_comes_and_is_named_once() -> None:
    also = np.array([[3, 2], [4, 1]])
    turns = SessionTurns(Sessions(after=np.array([-1, 0, 0, 1, 3]), think_s=np.zeros(5), also=also))
    assert turns.freed(0) == [1, 2]
    assert turns.lost(1) == [3, 4]
    assert turns.lost(2) == []
    assert [turns.closes(each) for each in (0, 1, 3, 4, 2)] == [False] * 4 + [True]


def test_a_concurrency_that_rises_lets_sessions_begin_at_their_times() -> None:
    # One at first, then two from 0.5 s on and three from 1 s on; replies of minutes.
    level = PiecewiseLinear(times_s=(0.0, 1.0), rates_per_s=(1.0, 3.0))
    loops = ClosedLoops(of=np.zeros(5, dtype=np.int64), pacers=(ClosedLoop(concurrency=level),))
    asked = Traffic(
        arrival_s=np.full(5, 2.0),  # the loop's time begins then
        prompt_tokens=np.full(5, 64),
        output_tokens=np.array([2_000, 900, 2_000, 9, 9]),
        loops=loops,
    )
    served = simulate(DEPLOYMENT, asked).served
    assert served.arrival_s[:3] == pytest.approx([2.0, 2.5, 3.0], abs=1e-8)
    assert served.arrival_s[3] == pytest.approx(served.last_token_s[1], abs=1e-9)
    assert served.arrival_s[4] == pytest.approx(served.last_token_s[3], abs=1e-9)
    assert served.finished.all()


def timed_loop(requests: int, *, concurrency: float, ends_s: float) -> ClosedLoops:
    level = PiecewiseLinear(times_s=(0.0,), rates_per_s=(concurrency,))
    pacer = ClosedLoop(concurrency=level, ends_ns=round(ends_s * 1e9))
    return ClosedLoops(of=np.zeros(requests, dtype=np.int64), pacers=(pacer,))


@pytest.mark.long
@given(
    data=st.data(),
    concurrency=st.integers(1, 4),
    ends_s=st.floats(0.01, 0.5),
    turns=st.integers(1, 3),
    replicas=st.integers(1, 2),
)
def test_a_time_that_ends_a_closed_loop_leaves_out_the_sessions_that_had_not_begun(
    data: st.DataObject, concurrency: int, ends_s: float, turns: int, replicas: int
) -> None:
    count = 90
    first = np.arange(count) % turns == 0
    sessions = Sessions(
        after=np.where(first, -1, np.arange(count) - 1), think_s=np.where(first, 0.0, 0.01)
    )
    asked = Traffic(
        arrival_s=np.full(count, 2.0),  # the loop's time begins then
        prompt_tokens=drawn(data, count, most=200),
        output_tokens=10 + drawn(data, count, most=20),
        sessions=sessions,
        loops=timed_loop(count, concurrency=concurrency, ends_s=ends_s),
    )
    deployment = replace(DEPLOYMENT, replicas=ReplicaSet(count=replicas, router="least-loaded"))
    run = simulate(deployment, asked)
    served = run.served
    sent = len(served.traffic)

    assert run.sent.tolist() == [request < sent for request in range(count)]
    assert served.ending == "served"
    assert served.finished.all()
    assert np.bincount(served.token_request).tolist() == asked.output_tokens[:sent].tolist()
    began_s = served.arrival_s[first[:sent]]
    assert (began_s < 2.0 + ends_s).all()
    # Until then one begins whenever another ends: the next would have begun later.
    rest = asked.chosen(np.arange(sent + turns))
    untimed = replace(rest, loops=ClosedLoops.one(len(rest), concurrency=concurrency))
    longer = simulate(deployment, untimed).served
    assert longer.arrival_s[:sent][first[:sent]].tolist() == began_s.tolist()
    assert longer.arrival_s[sent] >= 2.0 + ends_s


def test_a_loop_that_time_ends_is_refused_when_all_planned_sessions_have_begun() -> None:
    asked = Traffic(
        arrival_s=np.zeros(5),
        prompt_tokens=np.full(5, 64),
        output_tokens=np.full(5, 1),
        loops=timed_loop(5, concurrency=1.0, ends_s=9.0),
    )
    with pytest.raises(OptionError, match=r"^--duration=9: expected --requests beside it: 5"):
        simulate(DEPLOYMENT, asked)


def test_a_loop_ends_by_its_time_beside_requests_that_arrive_later() -> None:
    of = np.append(np.zeros(40, dtype=np.int64), -1)
    asked = Traffic(
        arrival_s=np.append(np.zeros(40), 3.0),
        prompt_tokens=np.full(41, 64),
        output_tokens=np.full(41, 20),
        loops=replace(timed_loop(41, concurrency=2.0, ends_s=0.5), of=of),
    )
    run = simulate(DEPLOYMENT, asked)

    assert run.sent[-1]
    assert not run.sent.all()
    assert run.served.arrival_s[-1] == 3.0
    assert run.served.arrival_s[:-1].max() < 0.5


def test_a_closed_loop_runs_beside_requests_with_arrivals_and_another_loop() -> None:
    pacers = tuple(ClosedLoops.one(1, concurrency=n).pacers[0] for n in (1, 2))
    of = np.array([0, 1, 1, -1, 0, 1, 1, -1])
    asked = Traffic(
        arrival_s=np.array([0.0] * 7 + [0.3]),
        prompt_tokens=np.full(8, 64),
        output_tokens=np.array([5, 9, 30, 4, 5, 3, 3, 4]),
        loops=ClosedLoops(of=of, pacers=pacers),
    )
    served = simulate(DEPLOYMENT, asked).served
    begun_s, last_s = served.arrival_s, served.last_token_s
    assert begun_s[[0, 1, 2, 3]].tolist() == [0.0] * 4
    assert begun_s[4] == pytest.approx(last_s[0], abs=1e-9)  # the first loop's own
    assert begun_s[5] == pytest.approx(last_s[1], abs=1e-9)
    assert begun_s[6] == pytest.approx(min(last_s[5], last_s[2]), abs=1e-9)
    assert begun_s[7] == 0.3
