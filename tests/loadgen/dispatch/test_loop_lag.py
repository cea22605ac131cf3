import asyncio
import time
from collections.abc import Callable

import pytest

from loadgen.dispatch.loop_lag import LoopLagMeter


class ByHand:
    """A clock, and an timer that rings when the test says so."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.ring = action

    def set(self, at_ns: int) -> None:
        pass

    def close(self) -> None:
        pass


def test_lags_by_hand() -> None:
    # Probes are due every 10 ms. At 10: on time. Then 45 instead of 20: the probes that were due
    # at 20, 30 and 40 were late by 25, 15 and 5.
    now_ns = [0]
    timers: list[ByHand] = []

    def make(action: Callable[[], None]) -> ByHand:
        timers.append(ByHand(action))
        return timers[0]

    with LoopLagMeter(now_ns=lambda: now_ns[0], cpu_ns=lambda: now_ns[0] // 4, timer=make) as meter:
        for ms in (9, 10, 45):  # the first is early, and counts for nothing
            now_ns[0] = ms * 1_000_000
            timers[0].ring()
    lag = meter.found(worker=1)

    assert (lag.p50_ms, lag.max_ms, lag.cpu_share) == (10.0, 25.0, 0.25)
    assert meter.lately_ms() == 25.0


@pytest.mark.long
def test_a_loop_that_is_left_alone_is_late_by_little_and_takes_little_of_the_processor() -> None:
    async def idle() -> LoopLagMeter:
        with LoopLagMeter() as meter:
            await asyncio.sleep(0.3)
        return meter

    found = [asyncio.run(idle()).found(worker=3) for _ in range(3)]

    assert found[0].worker == 3
    assert min(lag.p50_ms for lag in found) < 1.0
    assert min(lag.cpu_share for lag in found) < 0.2


@pytest.mark.long
def test_a_stop_of_the_loop_counts_for_every_probe_that_it_swallowed() -> None:
    # 0.1 s of 0.3 s: a third of the probes, or the median of what is late would not show it.
    async def stopped() -> LoopLagMeter:
        with LoopLagMeter() as meter:
            await asyncio.sleep(0.1)
            time.sleep(0.1)
            await asyncio.sleep(0.1)
        return meter

    begun = time.monotonic()
    meter = asyncio.run(stopped())
    lost_ms = (time.monotonic() - begun) * 1e3 - 300  # a busy machine's own, anywhere in the run
    lag = meter.found(worker=0)

    assert 89 < lag.max_ms < 101 + lost_ms  # a probe is due at most 10 ms after the stop begins
    assert lag.p99_ms > 60
    assert meter.lately_ms() == pytest.approx(lag.max_ms)
    assert meter.lately_ms() == 0


@pytest.mark.long
def test_work_shows_as_a_share_of_the_processor() -> None:
    async def busy() -> tuple[LoopLagMeter, float]:
        wall_s, cpu_s = time.monotonic(), time.process_time()
        with LoopLagMeter() as meter:
            while time.monotonic() < wall_s + 0.3:
                await asyncio.sleep(0)
        return meter, (time.process_time() - cpu_s) / (time.monotonic() - wall_s)

    meter, share = asyncio.run(busy())
    assert meter.found(worker=0).cpu_share == pytest.approx(share, rel=0.1)
