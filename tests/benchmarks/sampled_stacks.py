"""ASGI middleware that samples where the API's process spends its time, for `api_token_path`.

`vllm serve --middleware tests.benchmarks.sampled_stacks.SampledStacks` runs a timer of the
process's own processor time; at each tick the innermost frame that belongs to a part counts for
it. `GET /sampled_stacks` answers the ticks by part since the last such request. What C code takes
counts for the Python frame that called it, or for the loop.
"""

import json
import signal
from collections import Counter
from http import HTTPStatus
from types import FrameType
from typing import Final

from serving.server.gateway.http.asgi import App, Receive, Scope, Send, body_headers, respond

PATH: Final = "/sampled_stacks"
_TICK_S: Final = 0.002

PARTS: Final = (
    ("metrics", ("/prometheus_client/", "/v1/metrics/loggers.py", "/plugin/stat_logger.py")),
    ("gateway's counts", ("/plugin/request_watch.py", "/policy/admission/", "/gateway/admi")),
    ("detokenizer", ("/v1/engine/detokenizer.py", "/tokenizers/")),
    ("output processor", ("/v1/engine/output_processor.py", "/v1/metrics/stats.py", "/outputs.py")),
    ("decoding", ("/v1/serial_utils.py", "/v1/engine/core_client.py", "/zmq/", "/msgspec/")),
    ("direct streams", ("/plugin/direct_streams.py", "/http/written_body.py")),
    ("vLLM's chunks", ("/entrypoints/openai/", "/entrypoints/serve/engine/", "/pydantic/")),
    ("generators", ("/v1/engine/async_llm.py", "/utils/async_utils.py", "/plugin/response_")),
    ("server", ("/uvicorn/", "/gateway/http/bounded_protocol.py")),
    ("gateway's middlewares", ("/gateway/http/", "/server/control/")),
    (
        "vLLM's middlewares",
        ("/starlette/", "/fastapi/", "/prometheus_fastapi", "/entrypoints/serve/"),
    ),
)
"""Parts by their files; the first that fits the innermost frame that fits any."""

LOOP: Final = "loop"
"""The rest: the event loop with its system calls."""


def part_of(frame: FrameType | None) -> str:
    """The part in which a stack is, from its innermost frame."""
    while frame is not None:
        path = frame.f_code.co_filename
        for part, files in PARTS:
            if any(file in path for file in files):
                return part
        frame = frame.f_back
    return LOOP


class SampledStacks:
    """The middleware; one in a process."""

    passes_bodies = True

    def __init__(self, app: App) -> None:
        self._app = app
        self._ticks: Counter[str] = Counter()
        signal.signal(signal.SIGPROF, self._tick)
        signal.setitimer(signal.ITIMER_PROF, _TICK_S, _TICK_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the ticks, or pass the request on."""
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        ticks, self._ticks = self._ticks, Counter()
        body = json.dumps(ticks).encode()
        await respond(send, HTTPStatus.OK, body_headers(body), body)

    def _tick(self, number: int, frame: FrameType | None) -> None:
        del number
        self._ticks[part_of(frame)] += 1


class SampledPlainStacks(SampledStacks):
    """The same before streams that all go vLLM's way."""

    passes_bodies = False
