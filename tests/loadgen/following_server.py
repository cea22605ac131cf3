"""A server of known delays in emulated time, whose clock changes its dilation.

The dilation changes at known wall times after the run's first request, and its Unix clock is wrong
by `SKEW_S`, which a client must find out.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.loadgen.known_server import KnownServer, ServedReply

SKEW_S = 1_234.5


@dataclass(kw_only=True)
class FollowingServer(KnownServer):
    """`changes` are (wall seconds after the first request, dilation), in order.

    Requests of fewer tokens than `run_tokens` are warm-ups.
    """

    dilation: float | None = 4.0
    changes: tuple[tuple[float, float], ...] = ()
    run_tokens: int = 6
    looks: int = 0
    _began_s: float | None = None
    _made_s: float = field(default_factory=time.monotonic)

    def begins_s(self) -> list[tuple[float, float, float]]:
        """(wall, emulated, dilation) at the begin of each planned epoch."""
        assert self.dilation is not None
        epochs = [(self._made_s, 0.0, self.dilation)]
        for after_s, dilation in self.changes if self._began_s is not None else ():
            wall_s, emulated_s, before = epochs[-1]
            assert self._began_s is not None
            at_s = self._began_s + after_s
            epochs.append((at_s, emulated_s + (at_s - wall_s) / before, dilation))
        return epochs

    def emulated(self, wall_s: float) -> float:
        """Emulated seconds at a reading of the monotonic clock."""
        begins = [each for each in self.begins_s() if each[0] <= wall_s] or self.begins_s()[:1]
        begin_s, emulated_s, dilation = begins[-1]
        return emulated_s + (wall_s - begin_s) / dilation

    def wall(self, emulated_s: float) -> float:
        begins = [each for each in self.begins_s() if each[1] <= emulated_s]
        begin_s, since_s, dilation = begins[-1]
        return begin_s + (emulated_s - since_s) * dilation

    def begun(self) -> list[tuple[float, float, float]]:
        return [each for each in self.begins_s() if each[0] <= time.monotonic()]

    def _app(self) -> web.Application:
        app = super()._app()
        app.router.add_get("/clock", self._clock)
        return app

    async def _clock(self, _: web.Request) -> web.Response:
        self.looks += 1
        ahead_s = time.time() - time.monotonic() + SKEW_S
        epochs = [
            {
                "epoch": number,
                "from_emulated_s": emulated_s,
                "from_unix_s": wall_s + ahead_s,
                "dilation": dilation,
            }
            for number, (wall_s, emulated_s, dilation) in enumerate(self.begun())
        ]
        now = {"unix_s": time.time() + SKEW_S, "emulated_s": self.emulated(time.monotonic())}
        return web.json_response({"clock": "auto", "now": now, "epochs": epochs})

    async def _metrics(self, request: web.Request) -> web.Response:
        page = await super()._metrics(request)
        assert page.text is not None
        now = f"ultraserve_clock_dilation {self.begun()[-1][2]}\n"
        text = page.text.replace(f"ultraserve_clock_dilation {self.dilation}\n", now)
        page.text = text.replace('clock="dilated:4"', 'clock="auto"')
        return page

    async def _stream(
        self, request: web.Request, body: dict[str, Any], begin_s: float
    ) -> web.StreamResponse:
        ttft_s, itl_s = self._chance.uniform(*self.ttft_s), self._chance.uniform(*self.itl_s)
        reply = ServedReply(begin_s=begin_s)
        tokens = int(body["max_tokens"])
        if tokens >= self.run_tokens:
            self._began_s = self._began_s or begin_s
            self.replies.append(reply)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for token in range(tokens):
            due_s = self.wall(self.emulated(begin_s) + ttft_s + token * itl_s)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            reply.chunk_s.append(time.monotonic())
            choice = {"index": 0, "text": "word ", "finish_reason": None}
            if token == tokens - 1:
                choice["finish_reason"] = "length"
            await self._write(response, {"id": "a", "model": "known", "choices": [choice]})
        await self._write(response, {"choices": [], "usage": self._usage(body, tokens)})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _write(self, response: web.StreamResponse, payload: dict[str, Any]) -> None:
        body = web.json_response(payload).body
        assert isinstance(body, bytes)
        await response.write(b"data: " + body + b"\n\n")
