import pytest

from loadgen.live.live_counts import LiveCounts
from loadgen.live.live_figures import RECENT_WALL_S, LiveFiguresTaker
from loadgen.live.live_view import plain_line
from tests.loadgen.live.made_counts import begun, class_header, result


def busy() -> LiveCounts:
    counts = begun()
    counts.set_in_flight("chat", 5)
    counts.add_result(result(first_ms=100))
    counts.add_result(result(first_ms=300))
    counts.add_result(result(error="timeout"))
    counts.add_chunks("chat", 80)
    return counts


def test_a_moment_gives_rates_in_the_run_s_time_and_the_time_left_in_wall_time() -> None:
    # 8 wall s are 2 emulated s: 5 sent, 3 ended and 80 chunks; TTFT 100 and 300 wall ms are 25
    # and 75; 120 of 200 tokens are left, at 80 in 8 wall s: 12 s.
    seen = LiveFiguresTaker(busy()).take(8.0)

    assert (seen.total.sent_per_s, seen.total.ended_per_s, seen.tokens_per_s) == (2.5, 1.5, 40)
    assert seen.total.ttft.p50_ms == 50
    assert seen.total.ttft.p99_ms == pytest.approx(74.5)
    assert seen.total.tpot.p50_ms is None
    assert (seen.share, seen.left_wall_s) == (0.4, pytest.approx(12))
    assert (seen.time, seen.total.requests, seen.total.failed) == ("emulated", 10, 1)
    assert plain_line(seen) == (
        "0:08  2 completed, 1 failed of 10  2 in flight  2.50/s  TTFT p50 50.0 p99 74.5 ms  "
        "TPOT p50 - p99 - ms  "
        "40.0 tokens/s  (emulated time)  errors 1 (1 timeout)  ETA 0:12"
    )


def test_rates_are_those_of_the_last_seconds() -> None:
    counts = begun(dilation=None)
    snapshots = LiveFiguresTaker(counts)
    for second in range(1, 31):
        counts.add_chunks("chat", 100 if second <= 15 else 10)
        seen = snapshots.take(float(second))

    assert seen.tokens_per_s == 10
    assert len(snapshots._moments) <= RECENT_WALL_S + 2


def test_where_replies_are_further_on_than_tokens_the_time_left_is_told_by_requests() -> None:
    counts = begun(class_header(output_tokens=100_000), dilation=None)
    for _ in range(5):
        counts.add_chunks("chat", 1)
        counts.add_result(result())

    assert LiveFiguresTaker(counts).take(60.0).left_wall_s == 60


def test_before_the_first_reply_the_time_left_is_unknown() -> None:
    seen = LiveFiguresTaker(begun()).take(1.0)

    assert (seen.share, seen.left_wall_s) == (None, None)
    assert plain_line(seen).endswith("ETA -")


@pytest.mark.parametrize(("time", "left_wall_s"), [("emulated", 30.0), ("wall", 0.0)])
def test_a_class_that_ends_by_time_is_done_by_time(time: str, left_wall_s: float) -> None:
    counts = begun(class_header(requests=None, output_tokens=None, ends_s=10.0, time=time))
    counts.add_result(result())
    seen = LiveFiguresTaker(counts).take(10.0)

    assert seen.total.requests is None
    assert seen.left_wall_s == left_wall_s


def test_a_class_that_ends_by_time_or_by_its_plan_is_done_by_what_comes_first() -> None:
    planned = class_header(requests=4, output_tokens=None, ends_s=100.0)
    counts = begun(planned, dilation=None)
    counts.add_result(result())
    counts.add_result(result(error="timeout"))
    seen = LiveFiguresTaker(counts).take(10.0)

    assert (seen.share, seen.total.requests) == (0.5, 4)
    assert "1 completed, 1 failed of 4" in plain_line(seen)


def test_requests_of_all_are_unknown_where_those_of_one_class_are() -> None:
    counts = begun(class_header("a"), class_header("b", requests=None, ends_s=10.0))
    seen = LiveFiguresTaker(counts).take(1.0)

    assert [each.requests for each in (*seen.classes, seen.total)] == [10, None, None]
    assert "b: 0 completed  0 in flight" in plain_line(seen)


def test_the_class_with_the_longest_way_to_go_says_when_all_is_over() -> None:
    fast = class_header("fast", output_tokens=None)
    slow = class_header("slow", output_tokens=None)
    counts = begun(fast, slow, dilation=None)
    for _ in range(10):
        counts.add_result(result(name="fast"))
    counts.add_result(result(name="slow"))
    seen = LiveFiguresTaker(counts).take(10.0)

    assert seen.left_wall_s == pytest.approx(90)
    assert [each.ended for each in seen.classes] == [10, 1]
    assert (seen.total.ended, seen.total.requests) == (11, 20)
    assert plain_line(seen).startswith("0:10  fast: 10 completed of 10  0 in flight  1.00/s")


def test_the_largest_lag_of_all_workers_is_told() -> None:
    counts = busy()
    counts.set_lag(0, 0.2)
    counts.set_lag(1, 1.5)

    assert LiveFiguresTaker(counts).take(8.0).loop_lag_ms == 1.5
    assert "loop lag 1.50 ms" in plain_line(LiveFiguresTaker(counts).take(8.0))
