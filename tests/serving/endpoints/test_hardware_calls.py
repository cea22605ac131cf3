"""The control service's look at the hardware is everybody's: the engine is asked once."""

import asyncio
from collections.abc import Mapping
from typing import Any

from protos.ultraserve.v1 import control_pb2 as pb
from serving.endpoints.hardware_calls import HardwareCalls
from serving.front_door.hardware_watch import HardwareWatch
from tests.serving.plugin.seen_engine import Seen


class CountingEngine:
    """A real engine that counts what it is asked."""

    errored = False

    def __init__(self) -> None:
        self.seen = Seen()
        self.asked = 0

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        del method, timeout, kwargs
        self.asked += 1
        return [self.seen.engine.control(*args)]


class Calls(HardwareCalls):
    def __init__(self, engine: Any, hardware: HardwareWatch) -> None:
        self._engine = engine
        self._hardware = hardware


def test_calls_and_pages_that_look_at_a_time_are_shown_one_look() -> None:
    async def look() -> None:
        engine = CountingEngine()
        watch = HardwareWatch(engine)
        calls = Calls(engine, watch)
        context: Any = None
        request = pb.GetHardwareRequest()
        shown, *others = await asyncio.gather(
            *(calls.GetHardware(request, context) for _ in range(5))
        )
        page = await watch.fresh(60.0)
        assert engine.asked == 1
        assert all(each == shown for each in others)
        assert shown.report.emulated_s == page.report.emulated_s

    asyncio.run(look())
