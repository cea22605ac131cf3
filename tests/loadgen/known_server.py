"""A server of known delays: the reference of the load generator's measurements.

It speaks a run's part of the OpenAI interface, in a thread with its own event loop, on loopback. It
waits for planned moments, not for one delay after another, so that timers' lateness does not add
up, and records what it really did, so that its own lateness is not taken for the client's error.
"""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web

MODEL = "known"
VOCABULARY = 1_000
TEMPLATE_TOKENS = 4


@dataclass(kw_only=True)
class ServedReply:
    """Arrival of a request and of each chunk's write, in seconds of the monotonic clock."""

    begin_s: float
    chunk_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.chunk_s[0] - self.begin_s

    @property
    def e2e_s(self) -> float:
        return self.chunk_s[-1] - self.begin_s

    @property
    def tpot_s(self) -> float:
        return (self.e2e_s - self.ttft_s) / (len(self.chunk_s) - 1)


@dataclass(kw_only=True)
class KnownServer:
    """Serves until its context ends. Each `fail_` flag makes every request fail in its way.

    Delays are drawn between the ends of `ttft_s` and `itl_s`, in wall seconds.
    """

    seed: int = 0
    ttft_s: tuple[float, float] = (0.02, 0.06)
    itl_s: tuple[float, float] = (0.002, 0.006)
    dilation: float | None = None
    tokens_per_chunk: int = 1
    watts: float = 500.0
    with_usage: bool = True
    with_tokenizer: bool = True
    special_tokens: int = 0  # before a prompt of text, as the tokenizer counts it
    cached_tokens: int | None = None  # of every prompt, as the usage tells
    context_tokens: int | None = None
    endless: bool = False  # replies begin and never end
    fail_status: int | None = None
    fail_in_stream: bool = False
    fail_by_closing: bool = False
    drop_used: bool = False  # close under the second request of a connection, without a byte
    drop_all: bool = False  # the same, under the first
    max_tokens_served: int | None = None
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    replies: list[ServedReply] = field(default_factory=list)
    _emulated_s: float = 0.0
    _first_at_s: float | None = None
    _served: dict[asyncio.Transport, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._chance = np.random.default_rng(self.seed)

    @contextmanager
    def serving(self) -> Iterator["KnownServer"]:
        loop = asyncio.new_event_loop()
        runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=0.1)

        async def start() -> int:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            return int(runner.addresses[0][1])

        async def end() -> None:
            await runner.cleanup()
            left = asyncio.all_tasks() - {asyncio.current_task()}  # replies without an end
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            port = asyncio.run_coroutine_threadsafe(start(), loop).result(timeout=10)
            self.url = f"http://127.0.0.1:{port}"
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(end(), loop).result(timeout=10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=10)
            loop.close()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.on_response_prepare.append(self._note_key)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._completions)
        if self.with_tokenizer:
            app.router.add_post("/tokenize", self._tokenize)
            app.router.add_post("/detokenize", self._detokenize)
        if self.dilation is not None:
            app.router.add_get("/metrics", self._metrics)
        return app

    async def _note_key(self, request: web.Request, _: web.StreamResponse) -> None:
        self.keys.add(request.headers.get("Authorization"))

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "max_model_len": self.context_tokens}
        return web.json_response({"object": "list", "data": [model]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        """A token per word: its number in order of first appearance, in a small vocabulary.

        A chat's template takes TEMPLATE_TOKENS more.
        """
        body = await request.json()
        words = _words(body)
        if body.get("add_special_tokens", True) and "prompt" in body:
            words = ["<special>"] * self.special_tokens + words
        numbers = {word: at for at, word in enumerate(dict.fromkeys(words))}
        tokens = [numbers[word] % VOCABULARY for word in words]
        return web.json_response({"tokens": tokens, "count": len(tokens)})

    async def _detokenize(self, request: web.Request) -> web.Response:
        tokens = (await request.json())["tokens"]
        return web.json_response({"prompt": " ".join(f"t{token}" for token in tokens)})

    async def _metrics(self, _: web.Request) -> web.Response:
        """Emulated time from the first request on, at constant watts; some foreign lines."""
        assert self.dilation is not None
        if self._first_at_s is not None:
            now_s = asyncio.get_running_loop().time()
            self._emulated_s = (now_s - self._first_at_s) / self.dilation
        seconds = self._emulated_s
        return web.Response(
            text="# HELP vllm:num_requests_running Running.\n"
            'vllm:num_requests_running{engine="0"} 3.0\n'
            "# TYPE ultraserve_clock_dilation gauge\n"
            f"ultraserve_clock_dilation {self.dilation}\n"
            "# TYPE ultraserve_info gauge\n"
            'ultraserve_info{system="a tray",chips="4",time_model="big",weights="small",'
            'routing="uniform",clock="dilated:4"} 1.0\n'
            f"ultraserve_emulated_seconds_total {seconds}\n"
            f"ultraserve_lag_seconds_total {seconds / 100}\n"
            f"ultraserve_chip_energy_joules_total {seconds * self.watts / 2}\n"
            f"ultraserve_facility_energy_joules_total {seconds * self.watts}\n"
            "ultraserve_provisioned_watts 2000.0\n"
            "ultraserve_chips 4.0\n"
        )

    def _drops(self, transport: asyncio.Transport | None) -> bool:
        """Whether it has closed the connection under this request."""
        assert transport is not None
        served = self._served[transport] = self._served.get(transport, 0) + 1
        if self.drop_all or (self.drop_used and served > 1):
            transport.abort()
            return True
        return False

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        if self._first_at_s is None:
            self._first_at_s = begin_s
        body = await request.json()
        self.bodies.append(body)
        if self._drops(request.transport):
            return web.Response()
        if self.fail_status is not None:
            return web.json_response(
                {"error": {"message": "no room", "code": self.fail_status}},
                status=self.fail_status,
                headers={"Location": "/v1/completions"},
            )
        return await self._stream(request, body, begin_s)

    async def _stream(
        self, request: web.Request, body: dict[str, Any], begin_s: float
    ) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        chat = "messages" in body
        ttft_s, itl_s = self._chance.uniform(*self.ttft_s), self._chance.uniform(*self.itl_s)
        reply = ServedReply(begin_s=begin_s)
        self.replies.append(reply)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if chat:
            await response.write(_event(_chunk("", False, chat=True, role="assistant")))
        tokens = min(body["max_tokens"], self.max_tokens_served or body["max_tokens"])
        last_chunk = -(-tokens // self.tokens_per_chunk) - 1
        for chunk in range(last_chunk + 1):
            inner_s = chunk * itl_s * self.tokens_per_chunk
            await asyncio.sleep(max(0.0, begin_s + ttft_s + inner_s - loop.time()))
            reply.chunk_s.append(loop.time())
            word = "word " * self.tokens_per_chunk
            await response.write(_event(_chunk(word, chunk == last_chunk, chat=chat)))
            if self.endless:
                await asyncio.sleep(3600)
            if self.fail_by_closing:
                assert request.transport is not None
                request.transport.abort()
                return response
            if self.fail_in_stream:
                await response.write(_event({"error": {"message": "the engine died"}}))
                break
        if self.with_usage:
            await response.write(_event({"choices": [], "usage": self._usage(body, tokens)}))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _usage(self, body: Mapping[str, Any], tokens: int) -> Mapping[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": len(_words(body)), "completion_tokens": tokens}
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage


def _words(body: Mapping[str, Any]) -> list[Any]:
    if "messages" in body:
        said = " ".join(message["content"] for message in body["messages"])
        return ["<template>"] * TEMPLATE_TOKENS + said.split()
    prompt = body["prompt"]
    return prompt.split() if isinstance(prompt, str) else prompt


def _chunk(
    text: str, last: bool, *, chat: bool = False, role: str | None = None
) -> Mapping[str, object]:
    said: dict[str, object] = {"text": text}
    if chat:
        said = {"delta": {"content": text} | ({"role": role} if role else {})}
    choice = {"index": 0, **said, "finish_reason": "length" if last else None}
    return {"id": "cmpl-0", "object": "text_completion", "model": MODEL, "choices": [choice]}


def _event(payload: Mapping[str, object]) -> bytes:
    return b"data: " + web.json_response(payload).body + b"\n\n"  # type: ignore[operator]
