import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from loadgen.dispatch.timetable import LoopTimer, Timetable

MS = 1_000_000
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

Rings = list[int]


def ring(loop: str, set_timer: Callable[[LoopTimer], None]) -> Rings:
    """When it rang, in ns since it was set."""
    rings: Rings = []

    async def main() -> None:
        start_ns = time.monotonic_ns()
        timer = LoopTimer(lambda: rings.append(time.monotonic_ns() - start_ns))
        set_timer(timer)
        await asyncio.sleep(0.06)
        timer.close()
        timer.close()
        await asyncio.sleep(0.03)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())
    return rings


@pytest.mark.parametrize("loop", LOOPS)
class TestATimer:
    def test_rings_once_when_set_and_at_once_if_that_has_passed(self, loop: str) -> None:
        def soon(timer: LoopTimer) -> None:
            timer.set(time.monotonic_ns() + 10 * MS)

        (late,) = ring(loop, soon)
        assert 8 * MS < late < 50 * MS
        (passed,) = ring(loop, lambda timer: timer.set(0))
        assert passed < 40 * MS

    def test_is_set_anew_and_rings_at_the_last_time_only(self, loop: str) -> None:
        def twice(timer: LoopTimer) -> None:
            timer.set(time.monotonic_ns() + 2 * MS)
            timer.set(time.monotonic_ns() + 20 * MS)

        (rang,) = ring(loop, twice)
        assert rang > 15 * MS

    def test_does_not_ring_once_closed(self, loop: str) -> None:
        def set_and_close(timer: LoopTimer) -> None:
            timer.set(time.monotonic_ns() + 10 * MS)
            timer.close()

        assert ring(loop, set_and_close) == []


def test_on_uvloop_a_timetable_is_never_early_and_can_be_within_a_millisecond() -> None:
    async def lateness_ns() -> Rings:
        late: Rings = []
        faults: list[BaseException] = []
        for _ in range(30):
            reached = asyncio.Event()
            table = Timetable(
                now_ns=time.monotonic_ns, make_timer=LoopTimer, on_fault=faults.append
            )
            due_ns = time.monotonic_ns() + 2_300_000  # no whole milliseconds
            table.at(due_ns, reached.set)
            await reached.wait()
            late.append(time.monotonic_ns() - due_ns)
            table.close()
        assert not faults
        return late

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        late = runner.run(lateness_ns())
    assert 0 <= min(late) < 1.1 * MS


def test_a_timetable_runs_its_actions_in_order_and_goes_on_after_a_fault() -> None:
    ran: list[str] = []
    faults: list[BaseException] = []

    async def main() -> None:
        table = Timetable(now_ns=time.monotonic_ns, make_timer=LoopTimer, on_fault=faults.append)
        now_ns = time.monotonic_ns()
        table.at(now_ns + 20 * MS, lambda: ran.append("third"))
        table.at(now_ns + 5 * MS, lambda: ran.append("first"))
        table.at(now_ns + 5 * MS, lambda: ran.append(str(1 // 0)))
        table.at(now_ns + 5 * MS, lambda: table.at(0, lambda: ran.append("second")))
        table.at(now_ns + 500 * MS, lambda: ran.append("never"))
        await asyncio.sleep(0.08)
        assert len(table) == 1
        table.close()

    asyncio.run(main())
    assert ran == ["first", "second", "third"]
    assert [type(fault) for fault in faults] == [ZeroDivisionError]
