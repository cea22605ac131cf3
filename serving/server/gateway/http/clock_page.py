"""Emulated time for clients: a page, and headers of each response.

`GET /clock` is JSON: the setting, the present by both clocks, and the newest epochs
(`emulator.sim.epochs`), each of one dilation. Headers name the epoch in which a response began.
"""

import json
import time
from http import HTTPStatus
from typing import Final

from emulator.units import NS_PER_S
from serving.plugin.stat_logger import EmulatedStatLogger
from serving.server.gateway.http.asgi import (
    NO_STORE,
    App,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    body_headers,
    path_of,
    respond,
)

PATH: Final = "/clock"
DILATION_HEADER: Final = b"x-ultraserve-dilation"
EPOCH_HEADER: Final = b"x-ultraserve-clock-epoch"


class ClockPage:
    """`app` with the page and the headers; without a `logger`, which has the clock, `app` alone."""

    def __init__(self, app: App, logger: EmulatedStatLogger | None, *, setting: str) -> None:
        self._app = app
        self._logger = logger
        self._setting = setting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the page; add the headers to other answers."""
        if scope["type"] != "http" or self._logger is None:
            await self._app(scope, receive, send)
            return
        if path_of(scope) == PATH and scope["method"] == "GET":
            page = self._page().encode()
            await respond(send, HTTPStatus.OK, [*body_headers(page), NO_STORE], page)
            return

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self._headers()]}
            await send(message)

        await self._app(scope, receive, send_more)

    def _headers(self) -> Headers:
        assert self._logger is not None
        epochs = self._logger.epochs
        if epochs is None:
            return []
        return [
            (DILATION_HEADER, f"{epochs.last.dilation:.10g}".encode()),
            (EPOCH_HEADER, str(epochs.last.index).encode()),
        ]

    def _page(self) -> str:
        assert self._logger is not None
        epochs, unix_ns = self._logger.epochs, time.time_ns()
        now: dict[str, float] = {"unix_s": unix_ns / NS_PER_S}
        shown: list[dict[str, float]] = []
        if epochs is not None:
            now["emulated_s"] = epochs.emulated_ns(unix_ns) / NS_PER_S
            shown = [
                {
                    "epoch": epoch.index,
                    "from_emulated_s": epoch.from_ns / NS_PER_S,
                    "from_unix_s": epoch.from_wall_ns / NS_PER_S,
                    "dilation": epoch.dilation,
                }
                for epoch in epochs.epochs
            ]
        return json.dumps({"clock": self._setting, "now": now, "epochs": shown})
