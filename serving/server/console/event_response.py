"""An event stream's response: headers, compression, and a limit for slow readers."""

import asyncio
import zlib
from typing import Final

from aiohttp import web

from serving.server.console.event_stream import ReaderGone

WRITE_WALL_S_MAX: Final = 30.0
"""Wall seconds to take one event; a slower reader counts as gone."""

_PACKED_LEVEL: Final = 1  # a look at 144 chips then takes a tenth of its bytes, and 1 to 2 ms
_GZIP_WINDOW: Final = 31  # zlib's way to say gzip, with a window of 2**15


class EventResponse:
    """The response to `request`: begun once, then written."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # nginx would keep events until it has many
            }
        )
        self._packing = None
        if takes_gzip(request):
            self._packing = zlib.compressobj(_PACKED_LEVEL, wbits=_GZIP_WINDOW)
            self.response.headers["Content-Encoding"] = "gzip"
            self.response.headers["Vary"] = "Accept-Encoding"

    async def begin(self) -> None:
        """Send the head and a first line, which shows the reader that it is connected."""
        await self.response.prepare(self._request)
        await self.write(b"retry: 2000\n\n")

    async def write(self, data: bytes) -> None:
        """Write; raises ReaderGone when the reader does not take it."""
        if self._packing is not None:
            data = self._packing.compress(data) + self._packing.flush(zlib.Z_SYNC_FLUSH)
        try:
            async with asyncio.timeout(WRITE_WALL_S_MAX):
                await self.response.write(data)
        except TimeoutError:
            self.cut_off()
            raise ReaderGone from None
        except ConnectionError as error:
            raise ReaderGone from error

    def cut_off(self) -> None:
        """Abort without the response's end, so that the reader notices."""
        if self._request.transport is not None:
            self._request.transport.abort()


def takes_gzip(request: web.Request) -> bool:
    """Whether the client accepts gzip; `q=0` refuses it."""
    for part in request.headers.get("Accept-Encoding", "").split(","):
        name, _, weight = part.strip().lower().partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
