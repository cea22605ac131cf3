"""The server's page `/clock`: epochs of its emulated time, by its own Unix time.

The two hosts' clocks may differ: the page's time is taken as of the middle of the exchange, give or
take half its duration.
"""

import time
from dataclasses import dataclass
from typing import Annotated, Final

import aiohttp
import msgspec

from loadgen.clients.connection_problem import PROBLEMS
from loadgen.clients.question import read_answer
from loadgen.clients.server_json import UNREADABLE
from loadgen.errors import ServerError

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
