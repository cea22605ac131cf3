"""A server whose delays are known, in a process of its own and as cheap as Python allows.

    python -m tests.loadgen.truth_server --ttft 20ms-80ms --itl 2ms-8ms --truth truth.json

It prints its port and streams `max_tokens` chunks to each request, at moments planned from its
arrival in the kernel, so that what one timer is late by does not add up. Ended by SIGTERM it writes
what it really did, so that its own lateness is not taken for a client's error. Without delays it
writes as fast as it can and turns to the next connection after each write.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import uvloop

from loadgen.durations import parse_duration_s
from tests.loadgen.trivial_server import HEAD

MODEL: Final = "known"
CONTEXT_TOKENS: Final = 32_768
# Delays are drawn once, as a table; a run of more requests than this goes through it again.
DRAWS: Final = 1 << 16
# Linux, asm-generic/socket.h: with it, recvmsg tells when the last byte that it returns arrived.
_SO_TIMESTAMPNS: Final = 35
_EARLY_NS: Final = 500_000  # the loop's timers have whole milliseconds
_STAMP_BYTES: Final = 64
_READ_BYTES: Final = 1 << 18
_COMMON = b'"created":1700000000,"model":"known","choices":[%s]%s}\n\n'
_COMPLETION = b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion",' + _COMMON
_CHAT = b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk",' + _COMMON
_COMPLETION_TOKEN = b'{"index":0,"text":" word","logprobs":null,"finish_reason":%s}'
_CHAT_TOKEN = b'{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":%s}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Seconds, uniform between two ends; none if both are 0."""

    low_s: float = 0.0
    high_s: float = 0.0

    def draws(self, chance: np.random.Generator) -> list[int]:
        """A table of DRAWS delays in ns."""
        return [round(delay_s * 1e9) for delay_s in chance.uniform(self.low_s, self.high_s, DRAWS)]


def parse_delay(text: str) -> Delay:
    low, _, high = text.partition("-")
    return Delay(low_s=parse_duration_s(low), high_s=parse_duration_s(high or low))


@dataclass(slots=True, kw_only=True)
class ServedRequest:
    """Arrival of a request and write of its chunks, ns of the monotonic clock.

    `written_ns` has the moment before each chunk's write; without delays only the first and last.
    """

    arrived_ns: int
    tokens: int
    written_ns: list[int] = field(default_factory=list)


class _Message(msgspec.Struct):
    content: str = ""


class _Body(msgspec.Struct):
    prompt: str | list[int] = ""
    messages: list[_Message] = []
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


_DECODE: Final = msgspec.json.Decoder(_Body).decode


class KnownDelays:
    """Plans each request's delays by its place in the order of arrival, and records them."""

    def __init__(self, ttft: Delay, itl: Delay, *, chunks_per_write: int, seed: int) -> None:
        chance = np.random.default_rng(seed)
        self._ttft_ns, self._itl_ns = ttft.draws(chance), itl.draws(chance)
        self.chunks_per_write = chunks_per_write
        self.timed = ttft.high_s > 0 or itl.high_s > 0
        self.served: list[ServedRequest] = []

    def plan(self, tokens: int, arrived_ns: int) -> tuple[ServedRequest, int, int]:
        """Note the request; returns its record, the time of its first chunk, and the gap."""
        index = len(self.served) % DRAWS
        request = ServedRequest(arrived_ns=arrived_ns, tokens=tokens)
        self.served.append(request)
        return request, arrived_ns + self._ttft_ns[index], self._itl_ns[index]


class TruthConnection:
    """Reads the requests of one connection, one at a time, and answers each.

    It reads its own socket, for the kernel's stamp of a request's arrival: this process's lateness
    in reading is then no part of a client's apparent lateness.
    """

    def __init__(self, opened: socket.socket, delays: KnownDelays) -> None:
        self._socket = opened
        self._delays = delays
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._unsent = b""
        self._open = True
        self._loop.add_reader(opened.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            data, stamps, _, _ = self._socket.recvmsg(_READ_BYTES, _STAMP_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data, stamps = b"", []
        if not data:
            self._close()
            return
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if len(body) < int(length or 0):
            return
        self._received = b""
        path = head.split(b" ", 2)[1].partition(b"?")[0]
        if path in (b"/v1/completions", b"/v1/chat/completions"):
            chat = path == b"/v1/chat/completions"
            self._stream(_DECODE(body), chat=chat, now_ns=_arrival_ns(stamps))
        else:
            self._write(_answer(path, body))

    def _write(self, data: bytes) -> None:
        """Send now; the rest when the kernel takes it."""
        if not self._open:
            return
        if not self._unsent:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                pass
            except OSError:
                self._close()
                return
            if data:
                self._loop.add_writer(self._socket.fileno(), self._writable)
        self._unsent += data

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        data, self._unsent = self._unsent, b""
        self._write(data)

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()

    def _stream(self, body: _Body, *, chat: bool, now_ns: int) -> None:
        tokens = body.max_completion_tokens or body.max_tokens or 16
        prompt = body.prompt or " ".join(message.content for message in body.messages)
        prompt_tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        request, first_ns, gap_ns = self._delays.plan(tokens, now_ns)
        end = _end(chat, prompt_tokens, tokens)
        if self._delays.timed:
            self._write(HEAD)
            chunk = _chunk(chat, b"null")
            self._at(first_ns, lambda: self._timed(request, chunk, end, first_ns, gap_ns))
        else:
            writes = _fast_writes(chat, tokens, self._delays.chunks_per_write)
            self._fast(request, writes, end, 0)

    def _timed(
        self, request: ServedRequest, chunk: bytes, end: bytes, due_ns: int, gap_ns: int
    ) -> None:
        """Write the due chunk, and schedule the next. A timer begins with the loop's look at the
        clock, and is early by what the machine held the loop up since.
        """
        if not self._open:
            return
        if time.monotonic_ns() < due_ns - _EARLY_NS:
            self._at(due_ns, lambda: self._timed(request, chunk, end, due_ns, gap_ns))
            return
        written_ns = request.written_ns
        written_ns.append(time.monotonic_ns())
        if len(written_ns) == request.tokens:
            self._write(end)
            return
        self._write(chunk)
        next_ns = due_ns + gap_ns
        self._at(next_ns, lambda: self._timed(request, chunk, end, next_ns, gap_ns))

    def _fast(
        self, request: ServedRequest, writes: tuple[bytes, ...], end: bytes, done: int
    ) -> None:
        """Make one write, and the rest after the other connections'."""
        if not self._open:
            return
        data = writes[done] if done < len(writes) else b""
        if done == 0 or done >= len(writes) - 1:
            request.written_ns.append(time.monotonic_ns())
        if done >= len(writes) - 1:
            self._write(data + end)
            return
        self._write(data)
        self._loop.call_soon(self._fast, request, writes, end, done + 1)

    def _at(self, due_ns: int, act: Callable[[], None]) -> None:
        delay_ns = due_ns - time.monotonic_ns()
        if delay_ns > 0:
            self._loop.call_later(delay_ns / 1e9, act)
        else:
            self._loop.call_soon(act)


def _arrival_ns(stamps: list[tuple[int, int, bytes]]) -> int:
    """The kernel's time of arrival on the monotonic clock; now, without one."""
    for level, kind, data in stamps:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, rest_ns = struct.unpack_from("ll", data)
            late_ns = time.time_ns() - (int(seconds) * 1_000_000_000 + int(rest_ns))
            return time.monotonic_ns() - max(0, late_ns)
    return time.monotonic_ns()


def _framed(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


@cache
def _chunk(chat: bool, finish: bytes) -> bytes:
    shape, token = (_CHAT, _CHAT_TOKEN) if chat else (_COMPLETION, _COMPLETION_TOKEN)
    return _framed(shape % (token % finish, b""))


@cache
def _end(chat: bool, prompt_tokens: int, tokens: int) -> bytes:
    usage = b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
        prompt_tokens,
        prompt_tokens + tokens,
        tokens,
    )
    last = (_CHAT if chat else _COMPLETION) % (b"", usage)
    return _chunk(chat, b'"length"') + _framed(last + b"data: [DONE]\n\n") + b"0\r\n\r\n"


@cache
def _fast_writes(chat: bool, tokens: int, chunks_per_write: int) -> tuple[bytes, ...]:
    """All chunks but the last, in writes; the first begins with the head."""
    whole, rest = divmod(tokens - 1, chunks_per_write)
    sizes = [*([chunks_per_write] * whole), *([rest] if rest else [])]
    writes = [_chunk(chat, b"null") * size for size in sizes] or [b""]
    return (HEAD + writes[0], *writes[1:])


def _answer(path: bytes, body: bytes) -> bytes:
    """Answer requests other than completions."""
    status = b"200 OK"
    content: dict[str, Any] = {}
    if path == b"/v1/models":
        model = {"id": MODEL, "object": "model", "max_model_len": CONTEXT_TOKENS}
        content = {"object": "list", "data": [model]}
    elif path == b"/tokenize":
        asked = json.loads(body)
        said = asked.get("prompt") or " ".join(str(m["content"]) for m in asked.get("messages", ()))
        tokens = [len(word) for word in said.split()]  # a word counts one
        content = {"tokens": tokens, "count": len(tokens), "max_model_len": CONTEXT_TOKENS}
    elif path == b"/detokenize":
        content = {"prompt": " ".join("x" * token for token in json.loads(body)["tokens"])}
    elif path != b"/health":
        status, content = b"404 Not Found", {"error": {"message": "not here", "code": 404}}
    text = json.dumps(content).encode()
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(text)) + text


async def serve(delays: KnownDelays, truth: Path | None) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listening.setblocking(False)
    listening.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)  # what it accepts inherits it
    connections = []

    def accept() -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                opened, _ = listening.accept()
                opened.setblocking(False)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections.append(TruthConnection(opened, delays))

    loop.add_reader(listening.fileno(), accept)
    print(listening.getsockname()[1], flush=True)
    await ended.wait()
    if truth is not None:
        truth.write_text(json.dumps([asdict(request) for request in delays.served]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ttft", type=parse_delay, default=Delay())
    parser.add_argument("--itl", type=parse_delay, default=Delay())
    parser.add_argument("--chunks-per-write", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--truth", type=Path)
    given = parser.parse_args()
    delays = KnownDelays(
        given.ttft, given.itl, chunks_per_write=given.chunks_per_write, seed=given.seed
    )
    uvloop.run(serve(delays, given.truth))


if __name__ == "__main__":
    main()
