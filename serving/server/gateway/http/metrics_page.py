"""vLLM's page of metrics, then the hardware's families.

The engine is asked when the page is read. During a long step, or after an error, the page shows the
last snapshot and its age.
"""

import asyncio
import logging
from typing import Final

from serving.plugin.stat_logger import EmulatedStatLogger
from serving.server.engine_call import EngineFailed, EngineGone
from serving.server.gateway.http.asgi import App, Message, Receive, Scope, Send, path_of
from serving.server.gateway.snapshot_poller import PolledSnapshot, SnapshotPoller
from serving.telemetry.host_meter import HostMeter
from serving.telemetry.page.neuron_page import Instance
from serving.telemetry.page.snapshot_page import age_page, snapshot_page

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the server's process shows

PATH: Final = "/metrics"

_NEGOTIATES: Final = (b"accept", b"accept-encoding")
"""Headers that ask for OpenMetrics or compression, to which nothing can be appended."""

_MAX_AGE_S: Final = 0.25
"""Wall seconds; concurrent scrapes share a snapshot."""

_WITHIN_S: Final = 0.12
"""Wall seconds that a page waits for the engine: with the rest, less than 200 ms."""

FIRST_WITHIN_S: Final = 2.0
"""Wall seconds of the first page, which has no earlier snapshot. Scrapers as in deploy/prometheus
give up after 4 s, and take a late server for an ended one."""


class MetricsPage:
    """`app` with the hardware's families on its page of metrics; `logger` keeps the engine's own.

    The app's page alone where the engine is gone or has never answered; always uncompressed text.
    """

    def __init__(
        self,
        app: App,
        watch: SnapshotPoller,
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
        self._failure: str | None = None
        self._young = (0, "")  # a look's number, and its text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; append the families to the page."""
        if scope["type"] != "http" or path_of(scope) != PATH or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        headers = [pair for pair in scope["headers"] if pair[0].lower() not in _NEGOTIATES]
        look, failure = await self._look()
        async with self._lock:  # the app's figures and ours are of one look
            more = await self._hardware(look, failure)
            answer = _Longer(more.encode())
            await self._app({**scope, "headers": headers}, receive, answer)
        for message in answer.messages:  # a slow reader keeps nobody waiting
            await send(message)

    async def _hardware(self, look: PolledSnapshot | None, failure: str | None) -> str:
        text = ""
        if look is not None:
            look = self._watch.last or look  # another page may have taken a newer one meanwhile
        if look is not None:
            try:
                text = await self._shown(look)
            except Exception as error:  # noqa: BLE001 the app's page is not taken away with it
                failure = f"what the engine answers cannot be shown: {error!r}"
        if failure is not None and failure != self._failure:
            logger.error("no new figures of the hardware at %s: %s", PATH, failure)
        self._failure = failure
        return text

    async def _look(self) -> tuple[PolledSnapshot | None, str | None]:
        within_s = FIRST_WITHIN_S if self._watch.last is None else _WITHIN_S
        try:
            return await self._watch.fresh(_MAX_AGE_S, within_s), None
        except EngineFailed as error:
            return self._watch.last, str(error)
        except TimeoutError:
            return None, f"the engine has not answered within {within_s:g} s"
        except EngineGone:
            return None, None  # the server ends

    async def _shown(self, look: PolledSnapshot) -> str:
        if self._logger is not None:
            self._logger.take_snapshot(look.snapshot)
        # Beside the loop, which other requests' tokens wait for.
        return await asyncio.to_thread(self._rendered, look)

    def _rendered(self, look: PolledSnapshot) -> str:
        """The page of a snapshot; readers of a young one share its text."""
        number, text = self._young
        age_s = look.age_s()
        if number != look.number or age_s > _MAX_AGE_S:  # an old look's host is read anew
            text = snapshot_page(look.snapshot, self._instance, self._host.read())
            self._young = look.number, text
        return age_page(age_s=age_s, took_s=look.took_s) + text


class _Longer:
    """Collects a whole answer, with `more` behind a successful body."""

    def __init__(self, more: bytes) -> None:
        self.messages: list[Message] = []
        self._more = more
        self._start: Message | None = None
        self._body: list[bytes] = []

    async def __call__(self, message: Message) -> None:
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
        self.messages = [
            {**self._start, "headers": headers},
            {"type": "http.response.body", "body": body},
        ]
