import asyncio
import statistics
import sys
import time
from collections.abc import Callable

import pytest
import uvloop
from loadgen.attack.alarm import KernelAlarm, LoopAlarm, make_alarm
from loadgen.attack.timetable import Timetable

MS = 1_000_000
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
KINDS = [LoopAlarm, *([KernelAlarm] if sys.platform == "linux" else [])]

Rings = list[int]


def ring(
    kind: type[LoopAlarm] | type[KernelAlarm], loop: str, set_alarm: Callable[[LoopAlarm], None]
) -> Rings:
    """When it rang, in ns since it was set."""
    rings: Rings = []

    async def main() -> None:
        start_ns = time.monotonic_ns()
        alarm = kind(lambda: rings.append(time.monotonic_ns() - start_ns))
        set_alarm(alarm)  # type: ignore[arg-type]
        await asyncio.sleep(0.06)
        alarm.close()
        alarm.close()
        await asyncio.sleep(0.03)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())
    return rings


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
class TestAnAlarm:
    def test_rings_once_when_set_and_at_once_if_that_has_passed(self, kind, loop) -> None:
        def soon(alarm: LoopAlarm) -> None:
            alarm.set(time.monotonic_ns() + 10 * MS)

        (late,) = ring(kind, loop, soon)
        assert 8 * MS < late < 50 * MS
        (passed,) = ring(kind, loop, lambda alarm: alarm.set(0))
        assert passed < 40 * MS

    def test_is_set_anew_and_rings_at_the_last_time_only(self, kind, loop) -> None:
        def twice(alarm: LoopAlarm) -> None:
            alarm.set(time.monotonic_ns() + 2 * MS)
            alarm.set(time.monotonic_ns() + 20 * MS)

        (rang,) = ring(kind, loop, twice)
        assert rang > 15 * MS

    @pytest.mark.long
    def test_does_not_ring_once_closed(self, kind, loop) -> None:
        assert ring(kind, loop, lambda alarm: alarm.set(time.monotonic_ns() + 70 * MS)) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's timer is Linux's")
def test_the_kernel_s_alarm_is_later_than_asked_by_a_fraction_of_a_millisecond() -> None:
    async def lateness_ns() -> Rings:
        late: Rings = []
        for _ in range(30):
            rang = asyncio.Event()
            alarm = make_alarm(rang.set)
            due_ns = time.monotonic_ns() + 2_300_000  # no whole milliseconds
            alarm.set(due_ns)
            await rang.wait()
            late.append(time.monotonic_ns() - due_ns)
            alarm.close()
        return late

    late = asyncio.run(lateness_ns())
    assert min(late) >= 0
    assert statistics.median(late) < 0.5 * MS


def test_a_timetable_runs_its_actions_in_order_and_goes_on_after_a_fault() -> None:
    ran: list[str] = []
    faults: list[BaseException] = []

    async def main() -> None:
        table = Timetable(now_ns=time.monotonic_ns, make_alarm=make_alarm, on_fault=faults.append)
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
