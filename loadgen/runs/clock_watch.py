"""Follows the epochs of a server's clock during a run."""

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp

from loadgen.clients.clock_page import ClockReading, PageEpoch, read_clock
from loadgen.records.steady_time import ClockEpoch

EVERY_WALL_S: Final = 0.5
"""An epoch lasts at least 2 wall seconds; the page has the last 64."""


class ClockWatch:
    """Polls the clock of the server at `url`; calls `on_dilation` with each new dilation.

    Does nothing without the page.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: str, on_dilation: Callable[[float], None]
    ) -> None:
        self._session = session
        self._url = url
        self._on_dilation = on_dilation
        self._epochs: dict[int, PageEpoch] = {}
        self._best: ClockReading | None = None

    async def look(self) -> None:
        """Read the clock once."""
        reading = await read_clock(self._session, self._url)
        if reading is None or not reading.epochs:
            return
        if self._best is None or reading.uncertain_s < self._best.uncertain_s:
            self._best = reading
        newest = max(self._epochs, default=-1)
        self._epochs |= {each.epoch: each for each in reading.epochs}
        if reading.epochs[-1].epoch > newest:
            self._on_dilation(reading.epochs[-1].dilation)

    async def follow(self) -> None:
        """Read it repeatedly, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_WALL_S)

    def epochs(self, origin_ns: int) -> tuple[ClockEpoch, ...]:
        """The epochs from the run's first, which holds at `origin_ns` of our clock."""
        if self._best is None:
            return ()
        ahead_s = self._best.ahead_s
        found = [
            ClockEpoch(
                epoch=each.epoch,
                from_wall_ns=round((each.from_unix_s - ahead_s) * 1e9) - origin_ns,
                from_emulated_s=each.from_emulated_s,
                dilation=each.dilation,
            )
            for _, each in sorted(self._epochs.items())
        ]
        first = max((at for at, each in enumerate(found) if each.from_wall_ns <= 0), default=0)
        return tuple(found[first:])
