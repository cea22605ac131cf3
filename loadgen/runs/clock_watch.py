"""Follows the epochs of a server's clock during a run.

The server's page `/clock` names them by its own Unix time. The two hosts' clocks may differ: the
page's time is taken as of the middle of the exchange, give or take half its duration.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

import aiohttp
import msgspec

from loadgen.clients.connection_problem import PROBLEMS
from loadgen.clients.question import read_answer
from loadgen.clients.server_json import UNREADABLE
from loadgen.errors import ServerError
from loadgen.records.steady_time import ClockEpoch

CLOCK_TIMEOUT_S: Final = 5.0

_Above0 = Annotated[float, msgspec.Meta(gt=0.0, lt=1e12)]


class PageEpoch(msgspec.Struct, frozen=True):
    """An epoch of the server's page."""

    epoch: Annotated[int, msgspec.Meta(ge=0)]
    from_emulated_s: float
    from_unix_s: _Above0
    dilation: _Above0


class _Now(msgspec.Struct):
    unix_s: _Above0


class _Page(msgspec.Struct):
    now: _Now
    epochs: list[PageEpoch]


_DECODER: Final = msgspec.json.Decoder(_Page)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """The page's epochs in order. The server's Unix time is our monotonic clock plus `ahead_s`,
    within `uncertain_s`.
    """

    epochs: tuple[PageEpoch, ...]
    ahead_s: float
    uncertain_s: float


async def read_clock(session: aiohttp.ClientSession, url: str) -> ClockReading | None:
    """Read the page; None if it cannot be read."""
    began_s = time.monotonic()
    try:
        async with session.get(
            f"{url}/clock", timeout=aiohttp.ClientTimeout(total=CLOCK_TIMEOUT_S)
        ) as response:
            if response.status != 200:
                return None
            page = _DECODER.decode(await read_answer(response))
    except (TimeoutError, ServerError, *PROBLEMS, *UNREADABLE):
        return None
    took_s = time.monotonic() - began_s
    return ClockReading(
        epochs=tuple(sorted(page.epochs, key=lambda each: each.epoch)),
        ahead_s=page.now.unix_s - (began_s + took_s / 2),
        uncertain_s=took_s / 2,
    )


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
