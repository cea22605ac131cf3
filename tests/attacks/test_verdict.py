import math
from dataclasses import replace
from typing import Any

import pytest

from tests.attacks.answers import Answers, http_reason
from tests.attacks.verdict import (
    MEGABYTE,
    Measured,
    Served,
    broken,
    corrected,
    failures,
    is_decided,
    p99_s,
    slowed,
)

SERVED = Served(
    protocol="http",
    baselines_s=[[0.05] * 99 + [0.08]],
    attacked_s=[0.05] * 98 + [0.10, 0.20],
)
STOOD = Measured(
    needs_key=False,
    growth_bytes=100 * MEGABYTE,
    kept_bytes=25 * MEGABYTE,
    given_back_s=3.0,
    served=[SERVED, replace(SERVED, protocol="grpc")],
)


def test_what_is_just_within_every_limit_has_stood() -> None:
    assert SERVED.p99_ratio == 2.0
    assert failures([STOOD]) == []


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"growth_bytes": 101 * MEGABYTE}, "memory grew by 101 MB, 100 may be"),
        (
            {"growth_bytes": 201 * MEGABYTE, "needs_key": True},
            "memory grew by 201 MB, 200 may be",
        ),
        (
            {"kept_bytes": 26 * MEGABYTE, "given_back_s": 60.0},
            "26 MB were not given back in 60 s",
        ),
        ({"unreasoned": ["500 b''"]}, "5xx without a reason: 500 b''"),
        ({"faults": ["smuggled"]}, "smuggled"),
        ({"server_lives": False}, "the server ended"),
    ],
)
def test_each_criterion_fails_alone(changed: dict[str, object], line: str) -> None:
    assert failures([replace(STOOD, **changed)]) == [line]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"attacked_s": [0.05] * 98 + [0.11, 0.11]},
            "an honest client's p99 over http is 2.2 times its baseline, 2 may be",
        ),
        (
            {"attacked_s": [0.05] * 98 + [math.inf] * 2},
            "an honest client's p99 over http is inf times its baseline, 2 may be",
        ),
        (
            {"attacked_s": []},
            "an honest client's p99 over http is inf times its baseline, 2 may be",
        ),
        ({"baselines_s": [[0.05] * 9, [0.05] * 10]}, "no baseline: 19 answers of http, 20 needed"),
        (
            {"baselines_s": [[0.05] * 99, [0.05] * 98 + [math.inf] * 2]},
            "an honest client over http was refused before the attack",
        ),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_client_that_is_slowed_over_one_protocol_fails(
    changed: dict[str, Any], line: str, place: int
) -> None:
    served = [replace(SERVED, protocol="grpc"), SERVED]
    served.insert(place, replace(SERVED, **changed))  # type: ignore[arg-type]

    assert failures([replace(STOOD, served=served)]) == [line]


def test_a_key_may_have_twice_the_memory() -> None:
    held = replace(STOOD, growth_bytes=200 * MEGABYTE)

    assert broken(held) != []
    assert broken(replace(held, needs_key=True)) == []


def test_a_baseline_is_the_last_window_s_or_the_median_one_s() -> None:
    fast, usual, slow = [0.04] * 30, [0.05] * 30, [0.5] * 30

    assert replace(SERVED, baselines_s=[slow, usual, fast]).baseline_p99_s == 0.05
    assert replace(SERVED, baselines_s=[fast, usual, slow]).baseline_p99_s == 0.5
    assert replace(SERVED, baselines_s=[slow, fast, usual]).baseline_p99_s == 0.05


def test_latency_is_no_part_of_what_is_broken() -> None:
    late = replace(STOOD, served=[replace(SERVED, attacked_s=[1.0] * 100)])

    assert broken(late) == []
    assert slowed(late) != []


KEPT = replace(STOOD, kept_bytes=60 * MEGABYTE, given_back_s=60.0)
LATE = replace(STOOD, served=[replace(SERVED, attacked_s=[1.0] * 100)])
BROKEN = replace(STOOD, growth_bytes=101 * MEGABYTE)


@pytest.mark.parametrize(
    ("trials", "decided", "failed"),
    [
        ([STOOD], True, False),
        ([BROKEN], True, True),
        ([LATE], False, True),
        ([LATE, LATE], True, True),
        ([LATE, STOOD], False, False),
        ([LATE, STOOD, STOOD], True, False),
        ([LATE, STOOD, LATE], True, True),
        ([KEPT], False, True),
        ([KEPT, STOOD], True, False),
        ([KEPT, KEPT], True, True),
        ([LATE, KEPT], False, False),
        ([LATE, KEPT, STOOD], True, False),
        ([LATE, KEPT, KEPT], True, True),
        ([LATE, BROKEN], True, True),
        ([KEPT, BROKEN], True, True),
    ],
)
def test_noise_and_a_first_use_need_a_second_trial(
    trials: list[Measured], decided: bool, failed: bool
) -> None:
    assert is_decided(trials) == decided
    assert bool(failures(trials)) == failed


def test_a_stall_counts_the_requests_that_were_not_sent_meanwhile() -> None:
    assert corrected([1.0, 5.0, 2.0], 1.0) == [1.0, 5.0, 4.0, 3.0, 2.0, 1.0, 2.0, 1.0]
    assert corrected([0.5, math.inf], 1.0) == [0.5, math.inf]


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="interval_s"):
        corrected([1.0], 0.0)


def test_one_stall_among_many_answers_shows_in_the_p99() -> None:
    latencies = [0.05] * 200 + [1.5]

    assert p99_s(latencies) == 0.05
    assert p99_s(corrected(latencies, 0.05)) > 1.3


def test_the_p99_of_a_hundred_is_the_second_largest() -> None:
    assert p99_s([float(value) for value in range(1, 101)]) == 99.0
    assert p99_s([3.0]) == 3.0
    assert p99_s([]) == math.inf


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"message": "no rank is up", "type": "unavailable"}}', "no rank is up"),
        (b'{"error": {"message": "", "type": "unavailable"}}', ""),
        (b'{"error": {"message": "x"}}', ""),
        (b'{"error": "x"}', ""),
        (b"[]", ""),
        (b"Internal Server Error", ""),
        (b"", ""),
    ],
)
def test_a_reason_is_a_message_in_openai_s_shape(body: bytes, reason: str) -> None:
    assert http_reason(body) == reason


def test_a_probe_s_reason_is_a_line() -> None:
    assert http_reason(b"asleep\n", is_probe=True) == "asleep"
    assert http_reason(b"\n", is_probe=True) == ""


def test_answers_that_blame_the_server_without_a_reason_are_noted() -> None:
    answers = Answers()
    answers.http(500, b"Internal Server Error")
    answers.http(503, b'{"error": {"message": "asleep", "type": "unavailable"}}')
    answers.http(400, b"")
    answers.grpc(13, "")
    answers.grpc(14, "no rank is up")
    answers.grpc(16, "")
    answers.closed()

    assert answers.unreasoned == [
        "500 b'Internal Server Error'",
        "grpc status 13 without details",
    ]
    assert answers.by_status == {
        **{"500": 1, "503": 1, "400": 1, "closed": 1},
        **{"grpc 13": 1, "grpc 14": 1, "grpc 16": 1},
    }
    assert Answers.from_plain(answers.plain()) == answers
