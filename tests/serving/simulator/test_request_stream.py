"""Steps go ahead between what comes to machines, and a stream needs rows for open requests alone.

The reference goes step by step, as an engine with a watcher does.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from loadgen.workloads.traffic import Traffic
from serving.simulator import ReplicaSet, SimulatedDeployment, drawn_losses, simulate
from serving.simulator import request_stream as streams
from serving.simulator.day_night import LOOK_S, SimulatedDayNight
from serving.simulator.request_stream import EndedRequests, RequestStream
from serving.simulator.serve_stream import serve_stream
from tests.serving.simulator.test_day_night import (
    ALONE,
    BY_ENGINES,
    HOURS,
    THREE,
    times,
    traffic_of,
)

BY_TURNS = replace(THREE, replicas=ReplicaSet(count=3))
TWICE = "schedule:01:00-02:00,03:00-04:00;dwell=0s"
OUTPUT_MAX = 40


def ignored(*_: object, **__: object) -> None:
    """A watcher of steps, which therefore go one by one."""


def quick(asked: SimulatedDayNight, *, grace_s: float) -> SimulatedDayNight:
    return replace(asked, policy=TWICE, grace_s=grace_s, reading_s=0.1, start_s=0.0)


@pytest.mark.slow
@settings(max_examples=4)
@given(
    seed=st.integers(0, 999),
    engines=st.booleans(),
    grace_s=st.sampled_from([0.0, 0.02, 0.5]),
    by_policy=st.booleans(),
    struck=st.booleans(),
)
def test_steps_that_go_ahead_are_those_made_one_by_one(
    seed: int, *, engines: bool, grace_s: float, by_policy: bool, struck: bool
) -> None:
    deployment, asked = (BY_TURNS, BY_ENGINES) if engines else (ALONE, HOURS)
    traffic = traffic_of(requests=300, rate_per_s=40.0, seed=seed)
    how: dict[str, Any] = {}
    if by_policy or not struck:
        how["day_night"] = quick(asked, grace_s=grace_s)
    if struck:
        how["calls"] = drawn_losses(deployment.partitions, every_s=2.0, repair_s=1.5, seed=seed)
    run = simulate(deployment, traffic, **how)
    one_by_one = simulate(deployment, traffic, on_step=ignored, **how)
    assert times(run) == times(one_by_one)
    assert run.served.empty_rank_steps == one_by_one.served.empty_rank_steps
    assert run.served.joules == pytest.approx(one_by_one.served.joules, rel=1e-12)
    moves = [[each.at_s for each in of.calls] for of in (run, one_by_one)]
    assert moves[0] == pytest.approx(moves[1])


def pieces_of(traffic: Traffic, piece: int) -> Iterator[Traffic]:
    for first in range(0, len(traffic), piece):
        of = np.arange(len(traffic))
        yield traffic.chosen((of >= first) & (of < first + piece))


def streamed(
    deployment: SimulatedDeployment,
    traffic: Traffic,
    asked: SimulatedDayNight,
    ended: Callable[[EndedRequests], None],
    *,
    piece: int = 40,
) -> float:
    """Serve the traffic in pieces; returns all joules."""
    stream = RequestStream(
        pieces=pieces_of(traffic, piece),
        count=len(traffic),
        piece_max=piece,
        output_max=OUTPUT_MAX,
        ended=ended,
    )
    return serve_stream(deployment, stream, asked)[-1].joules


@pytest.mark.long
@pytest.mark.parametrize(("deployment", "asked"), [(BY_TURNS, BY_ENGINES), (ALONE, HOURS)])
def test_a_stream_is_served_as_the_whole_traffic(
    deployment: SimulatedDeployment,
    asked: SimulatedDayNight,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a table of less than half of the requests, whose rows are used again."""
    monkeypatch.setattr(streams, "OPEN_MAX", 120)
    traffic = traffic_of(requests=400, rate_per_s=40.0)
    asked = quick(asked, grace_s=0.02)
    seen: list[EndedRequests] = []
    joules = streamed(deployment, traffic, asked, seen.append)
    run = simulate(deployment, traffic, day_night=asked)

    columns = ("arrival_s", "ttft_s", "tpot_s", "output_tokens")
    arrival_s, ttft_s, tpot_s, tokens = (
        np.concatenate([getattr(each, name) for each in seen]) for name in columns
    )
    order = arrival_s.argsort()
    assert arrival_s[order] == pytest.approx(traffic.arrival_s)
    assert tokens[order].tolist() == traffic.output_tokens.tolist()
    assert ttft_s[order] == pytest.approx(run.ttft_s, abs=1e-8)
    assert tpot_s[order] == pytest.approx(run.tpot_s, abs=1e-8)
    assert joules == pytest.approx(run.served.joules)


def test_a_stream_that_a_machine_cannot_serve_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "OPEN_MAX", 20)
    traffic = traffic_of(requests=200, rate_per_s=2_000.0)
    with pytest.raises(
        ConfigError, match=r"requests=.*fewer that wait or run at a time"
    ) as refused:
        streamed(BY_TURNS, traffic, replace(BY_ENGINES, policy="never"), lambda _: None)
    assert "\n" not in str(refused.value)
    by_load = replace(BY_TURNS, replicas=ReplicaSet(count=3, router="least-loaded"))
    with pytest.raises(ConfigError, match="stream=steps one by one: expected engines that take"):
        streamed(by_load, traffic, replace(BY_ENGINES, policy="never"), lambda _: None)


@pytest.mark.long
def test_a_policy_decides_as_often_as_it_is_asked_to_and_hand_overs_go_on_meanwhile() -> None:
    traffic = traffic_of(requests=300, rate_per_s=40.0)
    asked = replace(BY_ENGINES, policy="fixed:1", start_s=0.0, look_s=5.0)
    run = simulate(BY_TURNS, traffic, day_night=asked)
    drains = [each.at_s for each in run.calls]
    assert drains[:2] == [0.0, 0.0]  # decided at the start
    assert run.handovers is not None
    assert run.handovers.job_starts == 1  # by a look long before the next decision
    assert run.handovers.leased_chip_s > 0.9 * 8 * (run.served.emulated_s - 4 * LOOK_S)
