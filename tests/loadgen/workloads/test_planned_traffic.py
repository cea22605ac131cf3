"""Planned sessions as traffic: arrivals, lengths, turns, and what prompts share."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.arrivals.make_pacer import make_pacer
from loadgen.workloads.class_draft import draft_class
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.plan import plan_single_requests, plan_workload
from loadgen.workloads.planned_traffic import class_traffic, planned_traffic, single_traffic
from loadgen.workloads.trace_file import read_trace
from loadgen.workloads.traffic import Traffic
from loadgen.workloads.workload_spec import WorkloadSpec
from tests.loadgen.workloads.made_plans import mooncake, synthetic


def planned(
    sessions: int, *, history: str = "planned", spec: dict | None = None, **arrivals: object
) -> Traffic:
    plan = plan_workload(synthetic("10", "4", **(spec or {})), sessions=sessions, seed=0)
    pacer = make_pacer(
        ArrivalSpec(**arrivals),  # type: ignore[arg-type]
        sessions=sessions,
        recorded_ns=plan.arrivals_ns,
        seed=0,
    )
    return planned_traffic(plan, pacer, served_history=history == "served")


def pieces(traffic: Traffic, request: int) -> list[tuple[int, int]]:
    """Names and ends of a request's shared text."""
    assert traffic.blocks is not None
    which = slice(*traffic.blocks.begin[request : request + 2])
    names, ends = traffic.blocks.names[which], traffic.blocks.end_tokens[which]
    return list(zip(names.tolist(), ends.tolist(), strict=True))


def test_single_requests_come_at_the_pacers_times_and_share_nothing() -> None:
    traffic = planned(4, rate="2", gaps="constant")

    assert traffic.arrival_s.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert traffic.prompt_tokens.tolist() == [10] * 4
    assert traffic.output_tokens.tolist() == [4] * 4
    assert (traffic.blocks, traffic.sessions, traffic.loops) == (None, None, None)


def conversations(history: str) -> Traffic:
    spec = {"turns": synthetic("3", "1").input_lengths, "think_s": 1.5}
    return planned(2, history=history, spec=spec, rate="2", gaps="constant")


def test_a_turn_waits_for_the_one_before_and_begins_with_its_prompt() -> None:
    traffic = conversations("planned")

    assert traffic.sessions is not None
    assert traffic.sessions.after.tolist() == [-1, 0, 1, -1, 3, 4]
    assert traffic.sessions.think_s.tolist() == [0, 1.5, 1.5, 0, 1.5, 1.5]
    assert traffic.arrival_s.tolist() == [0, 0, 0, 0.5, 0.5, 0.5]
    # A prompt is 10 tokens, then also the reply of 4 and 10 more.
    assert traffic.prompt_tokens.tolist() == [10, 24, 38] * 2
    first, second, third = (pieces(traffic, request) for request in range(3))
    assert [end for _, end in third] == [10, 14, 24]
    assert first == third[:1]
    assert second == third  # the planned reply is not what the server said to the first
    assert not set(pieces(traffic, 3)) & set(first)


def test_a_reply_that_was_said_is_what_the_next_turn_begins_with() -> None:
    traffic = conversations("served")
    first, second, third = (pieces(traffic, request) for request in range(3))

    assert [end for _, end in third] == [10, 14, 24, 28]
    assert first == third[:2]
    assert second == third


def test_system_prompts_are_shared_by_all_of_their_group() -> None:
    spec = {"shared_prefix_tokens": 32, "shared_prefix_groups": 2}
    traffic = planned(20, spec=spec, rate="2")

    named = {tuple(pieces(traffic, request)) for request in range(20)}
    assert {ends for each in named for _, ends in each} == {32}
    assert len(named) == 2
    assert traffic.prompt_tokens.tolist() == [42] * 20


def test_a_fan_out_is_joined_after_all_of_its_calls() -> None:
    traffic = planned(1, spec={"fan_out": (3, 1)}, history="served", rate="1")

    assert traffic.sessions is not None
    assert traffic.sessions.after.tolist() == [-1, 0, 0, 0, 1]
    assert traffic.sessions.also is not None
    assert traffic.sessions.also.tolist() == [[4, 2], [4, 3]]
    plan, *calls, join = (pieces(traffic, request) for request in range(5))
    # The plan's prompt and reply are what all begin with; the calls' own texts stand alone.
    assert plan == join[:2]
    assert all(each == plan for each in calls)
    assert traffic.prompt_tokens.tolist() == [10, 24, 24, 24, 14 + 3 * 4 + 10]


def test_a_closed_loop_has_a_concurrency_and_no_arrivals() -> None:
    traffic = planned(5, concurrency="2")

    assert traffic.loops is not None
    assert traffic.loops.of.tolist() == [0] * 5
    (pacer,) = traffic.loops.pacers
    assert pacer.concurrency.rates_per_s == (2.0,)
    assert traffic.arrival_s.tolist() == [0.0] * 5


@given(late=st.integers(0, 9), sessions=st.integers(1, 9))
def test_sessions_without_a_time_are_not_sent(late: int, sessions: int) -> None:
    plan = plan_workload(synthetic("10", "4"), sessions=sessions, seed=0)
    due_ns = list(range(0, late * 10**9, 10**9))
    pacer = make_pacer(ArrivalSpec(), sessions=late, recorded_ns=due_ns, seed=0)

    traffic = planned_traffic(plan, pacer, start_s=2.0)
    assert traffic.arrival_s.tolist() == [2.0 + at for at in range(min(late, sessions))]
    assert len(traffic) == min(late, sessions)


def test_traffic_of_two_classes_is_merged_by_arrival() -> None:
    chat, plain = conversations("planned"), planned(3, rate="4", gaps="constant")
    prefixed = planned(2, spec={"shared_prefix_tokens": 8}, rate="1", gaps="constant")
    merged, part = Traffic.merged([plain, chat, prefixed])

    assert part.tolist() == [0, 1, 1, 1, 2, 0, 0, 1, 1, 1, 2]
    assert merged.arrival_s.tolist() == [0, 0, 0, 0, 0, 0.25, 0.5, 0.5, 0.5, 0.5, 1.0]
    assert merged.sessions is not None
    assert merged.sessions.after.tolist() == [-1, -1, 1, 2, -1, -1, -1, -1, 7, 8, -1]
    assert merged.sessions.think_s[2] == 1.5
    for number, each in enumerate((plain, chat, prefixed)):
        of_class = np.flatnonzero(part == number)
        assert merged.prompt_tokens[of_class].tolist() == each.prompt_tokens.tolist()
    assert merged.blocks is not None
    names = [{name for name, _ in pieces(merged, request)} for request in range(len(merged))]
    assert names[1] < names[2] == names[3]
    assert names[4] == names[10] != set()
    assert not names[4] & names[3]


def test_closed_loops_keep_their_pacers_beside_open_ones() -> None:
    loops = [planned(2, concurrency="2"), planned(3, concurrency="ramp:1-4/9s")]
    merged, part = Traffic.merged([loops[0], planned(2, rate="1", gaps="constant"), loops[1]])

    assert part.tolist() == [0, 0, 1, 2, 2, 2, 1]
    assert merged.loops is not None
    assert merged.loops.of.tolist() == [0, 0, -1, 1, 1, 1, -1]
    assert [each.concurrency.rates_per_s for each in merged.loops.pacers] == [(2.0,), (1.0, 4.0)]


@pytest.mark.parametrize("history", ["planned", "served"])
def test_a_class_of_conversations_is_planned_whole(history: Literal["planned", "served"]) -> None:
    spec = synthetic("10", "4", turns=parse_lengths("3"), think_s=1.5, sessions=2, history=history)
    arrivals = ArrivalSpec(rate="2", gaps="constant", start_s=5.0)
    made = class_traffic(draft_class(spec, arrivals, seed=0))

    assert made.traffic.arrival_s.tolist() == [5.0, 5.0, 5.0, 5.5, 5.5, 5.5]
    assert pieces(made.traffic, 0)[-1] == pieces(conversations(history), 0)[-1]
    assert made.workload.startswith("synthetic, input 10, output 4; 6 requests in 2 sessions")
    assert made.arrivals.words == "even gaps, 2 per emulated s"
    assert made.notes == ()


def rows_of(traffic: Traffic) -> list[tuple[float, int, int, list[tuple[int, int]]]]:
    """Arrival, lengths, and names numbered in the order of their first use."""
    of: dict[int, int] = {}
    numbers = zip(
        traffic.arrival_s.tolist(),
        traffic.prompt_tokens.tolist(),
        traffic.output_tokens.tolist(),
        strict=True,
    )
    return [
        (*each, [(of.setdefault(name, len(of)), end) for name, end in _names(traffic, request)])
        for request, each in enumerate(numbers)
    ]


def _names(traffic: Traffic, request: int) -> list[tuple[int, int]]:
    return [] if traffic.blocks is None else pieces(traffic, request)


@pytest.mark.parametrize("named", [True, False])
@given(data=st.data())
def test_columns_are_what_is_planned_call_by_call(
    data: st.DataObject, named: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    caps = st.sampled_from([None, 3, 40, 700])
    more: dict[str, Any] = {
        "max_input_tokens": data.draw(caps),
        "max_output_tokens": data.draw(caps),
        **data.draw(st.sampled_from([{}, {"long_share": 0.5, "long_tokens": 900}])),
    }
    sessions, seed = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 9))
    if named:
        rows = [(520, [1, 2]), (1_100, [1, 2, 3]), (9, []), (600, [1, 4])]
        spec = WorkloadSpec(trace=mooncake(tmp_path_factory.mktemp("trace"), *rows), **more)
    else:
        spec = synthetic("uniform:1-50", "uniform:1-50", **more)
    trace = read_trace(spec)
    whole = plan_workload(spec, sessions=sessions, seed=seed, trace=trace)
    columns = plan_single_requests(spec, sessions=sessions, seed=seed, trace=trace)
    pacer = make_pacer(ArrivalSpec(rate="3"), sessions=sessions, recorded_ns=None, seed=seed)

    assert columns is not None
    expected = planned_traffic(whole, pacer)
    found = single_traffic(columns, pacer)
    shared = found.blocks and found.blocks.shared()
    assert rows_of(replace(found, blocks=shared)) == rows_of(expected)
    assert (columns.words, columns.cuts) == (whole.words, whole.cuts)
    assert (columns.notes, columns.arrivals_ns) == (whole.notes, whole.arrivals_ns)


def test_what_has_turns_or_shares_a_prompt_has_no_columns() -> None:
    for more in ({"turns": parse_lengths("2")}, {"fan_out": (2, 1)}, {"shared_prefix_tokens": 8}):
        spec = synthetic("10", "4", **more)
        assert plan_single_requests(spec, sessions=3, seed=0, trace=None) is None


def test_what_is_left_out_or_cut_is_said() -> None:
    spec = synthetic("10", "4", sessions=100, max_input_tokens=8)
    made = class_traffic(
        draft_class(spec, ArrivalSpec(rate="ramp:10-0/2s", gaps="constant"), seed=0)
    )

    assert len(made.traffic) == 10
    assert made.notes == (
        "--max-input-tokens cut 100 requests by 200 tokens in all",
        "the rate falls to 0 after 10 of 100 sessions: the others are not sent",
    )
