import numpy as np
import pytest

from loadgen.records.result import CONNECT, CUT_OFF, TIMEOUT, Result
from loadgen.runs.unreachable import UnreachableWatch


def ended(at_s: float, error: str | None = CONNECT) -> Result:
    ended_ns = round(at_s * 1e9)
    return Result(
        request_id=0,
        traffic_class="default",
        session_id=0,
        turn=0,
        worker=0,
        intended_ns=0,
        sent_ns=0,
        ended_ns=ended_ns,
        chunk_ns=np.array([], dtype=np.int64),
        asked_input_tokens=1,
        asked_output_tokens=1,
        input_tokens=None,
        output_tokens=None,
        error=error,
        message="no connection: refused",
    )


def said(*results: Result, chunks: int = 7) -> list[bool]:
    watch = UnreachableWatch()
    return [bool(watch.gone(each, chunks=chunks)) for each in results]


@pytest.mark.parametrize("kind", [CONNECT, "UNAVAILABLE"])
def test_five_seconds_without_a_connection_are_the_end(kind: str) -> None:
    every_half = [ended(at / 2, kind) for at in range(12)]

    assert said(*every_half) == [False] * 10 + [True, True]


def test_a_few_requests_that_are_refused_are_too_few_to_say() -> None:
    slow = [ended(float(at)) for at in range(12)]

    assert said(*slow).index(True) == 9


@pytest.mark.parametrize("kind", [None, CUT_OFF, TIMEOUT, "status 503"])
def test_a_server_that_answers_in_any_way_is_there(kind: str | None) -> None:
    often = [ended(at / 2) for at in range(10)]

    assert not any(said(*often, ended(5.0, kind), *(ended(5 + at / 2) for at in range(10))))


def test_a_server_that_still_streams_what_it_began_is_there() -> None:
    watch = UnreachableWatch()

    assert not any(watch.gone(ended(at / 2), chunks=at) for at in range(100))


def test_it_is_said_in_a_line() -> None:
    watch = UnreachableWatch()
    words = [watch.gone(ended(at / 2), chunks=0) for at in range(11)]

    assert words[-1] == (
        "the server could not be reached for 5.0 wall s, in which 11 requests tried, so that no "
        "more were sent (no connection: refused)"
    )
