"""vLLM's page of metrics with the hardware's families behind it.

The engine is asked when somebody reads the page. One whose step takes longer than a page may is
shown as it last was, and the page says how long ago that is.
"""

import asyncio
from typing import Final

from serving.controller.engine_call import EngineFailed, EngineGone
from serving.front_door.hardware_watch import HardwareLook, HardwareWatch
from serving.front_door.http.asgi import App, Message, Receive, Scope, Send, path_of
from serving.metrics.host_meter import HostMeter
from serving.metrics.page.hardware_page import hardware_page
from serving.metrics.page.neuron_page import Instance
from serving.plugin.stat_logger import EmulatedStatLogger

PATH: Final = "/metrics"

_MAX_AGE_S: Final = 0.25
"""Wall seconds; several who scrape at a time are shown one look."""

_WITHIN_S: Final = 0.12
"""Wall seconds that a page waits for the engine: with the rest it takes less than 200 ms."""

_FIRST_WITHIN_S: Final = 5.0
"""As long waits the first page: there is no look before. Prometheus gives up after 10 s."""


class MetricsPage:
    """`app` with the hardware's families on its page of metrics; `logger` keeps the engine's own.

    Where the engine is gone, or has never answered, the page is the app's alone.
    """

    def __init__(
        self,
        app: App,
        watch: HardwareWatch,
        instance: Instance,
        host: HostMeter,
        logger: EmulatedStatLogger | None,
    ) -> None:
        self._app = app
        self._watch = watch
        self._instance = instance
        self._host = host
        self._logger = logger
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on; of the page's, the answer is longer by what we have to say."""
        if scope["type"] != "http" or path_of(scope) != PATH or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        more = await self._hardware()
        await self._app(scope, receive, _Longer(send, more.encode()))

    async def _hardware(self) -> str:
        within_s = _FIRST_WITHIN_S if self._watch.last is None else _WITHIN_S
        try:
            look = await self._watch.fresh(_MAX_AGE_S, within_s)
        except (EngineGone, EngineFailed, TimeoutError):
            return ""
        if self._logger is not None:
            self._logger.take_look(look.report, look.snapshot)
        async with self._lock:  # beside the loop, which other requests' tokens wait for
            return await asyncio.to_thread(self._rendered, look)

    def _rendered(self, look: HardwareLook) -> str:
        return hardware_page(
            look.report,
            self._instance,
            self._host.read(),
            age_s=look.age_s(),
            took_s=look.took_s,
        )


class _Longer:
    """Sends a whole answer in one message, with `more` behind its body when it is a success."""

    def __init__(self, send: Send, more: bytes) -> None:
        self._send = send
        self._more = more
        self._start: Message | None = None
        self._body: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        """Take a message of the app's."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        assert self._start is not None, message
        self._body.append(message.get("body", b""))
        if message.get("more_body"):
            return
        success = self._start["status"] == 200
        body = b"".join((*self._body, self._more if success else b""))
        headers = [pair for pair in self._start["headers"] if pair[0] != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**self._start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
