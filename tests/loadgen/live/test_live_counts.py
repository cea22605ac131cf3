import numpy as np
import pytest

from loadgen.live.live_counts import RECENT_REPLIES, LiveCounts
from tests.loadgen.live.made_counts import MS, begun, header, result


def test_before_the_dispatch_there_is_only_what_is_being_done() -> None:
    counts = LiveCounts()
    counts.say("making prompts")

    assert counts.origin_ns is None
    assert counts.phase == "making prompts"
    assert counts.classes == {}


def test_a_result_leaves_the_flight_and_failures_are_counted_by_kind() -> None:
    counts = begun()
    chat = counts.classes["chat"]
    counts.set_in_flight("chat", 4)
    counts.add_result(result(first_ms=100))
    counts.add_result(result(error="timeout"))
    counts.add_result(result(error="aborted"))

    assert (chat.ended, chat.in_flight, chat.sent, chat.failed) == (3, 1, 4, 1)
    assert chat.errors == {"timeout": 1, "aborted": 1}
    assert list(chat.ttft_wall_ns) == [100 * MS]


def test_tokens_are_chunks_by_the_tokens_that_chunks_had() -> None:
    counts = begun()
    counts.add_chunks("chat", 10)
    assert counts.classes["chat"].tokens == 10

    counts.add_result(result(first_ms=100, gaps_ms=(10, 10), tokens=9))  # three chunks
    assert counts.classes["chat"].tokens == 30


def test_tpot_is_over_the_tokens_after_the_first() -> None:
    counts = begun()
    counts.add_result(result(first_ms=100, gaps_ms=(10, 30), tokens=5))
    counts.add_result(result(first_ms=100, tokens=5))  # one chunk has no time between tokens

    assert list(counts.classes["chat"].tpot_wall_ns) == [10 * MS]


def test_latencies_count_from_when_requests_were_due() -> None:
    counts = begun()
    counts.add_result(result(first_ms=100, due_ms=-50))

    assert list(counts.classes["chat"].ttft_wall_ns) == [150 * MS]


def test_only_so_many_replies_are_kept_however_long_the_run() -> None:
    counts = begun()
    for number in range(RECENT_REPLIES + 5):
        counts.add_result(result(first_ms=number + 1))

    kept = np.array(counts.classes["chat"].ttft_wall_ns)
    assert kept.size == RECENT_REPLIES
    assert kept[0] == 6 * MS


def test_another_dispatch_begins_from_nothing() -> None:
    counts = begun()
    counts.add_result(result(first_ms=1))
    counts.set_lag(1, 3.0)
    counts.begin(header(), 7)

    assert (counts.classes["chat"].ended, counts.origin_ns, counts.lags_ms) == (0, 7, {})


def test_a_class_that_nobody_announced_is_an_error() -> None:
    with pytest.raises(KeyError):
        begun().add_chunks("batch", 1)
