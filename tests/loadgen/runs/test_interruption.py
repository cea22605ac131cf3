import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop

from loadgen.runs.interruption import stopped_by_signals


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_and_the_second_ends_everything(runner, number) -> None:
    stops: list[int] = []
    reached: list[str] = []

    async def main() -> None:
        with stopped_by_signals(lambda: stops.append(1)):
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
            reached.append("goes on after the first")
            os.kill(os.getpid(), number)
            await asyncio.sleep(5)
            reached.append("goes on after the second")

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        runner(main())

    assert stops == [1]
    assert reached == ["goes on after the first"]
    assert signal.getsignal(number) is before


def test_outside_the_main_thread_nothing_is_caught() -> None:
    async def main() -> str:
        with stopped_by_signals(lambda: None):
            return "ran"

    with ThreadPoolExecutor() as pool:
        assert pool.submit(asyncio.run, main()).result() == "ran"
