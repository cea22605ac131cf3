"""HTTP/2 and gRPC, frame by frame, including invalid ones.

Source of the numbers: RFC 9113, section 6.
"""

import asyncio
import contextlib
from typing import Final

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

from tests.attacks.attacker import Attacker, Wire

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8

HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE = 0x1, 0x4
CANCEL: Final = 0x8
WINDOW_BYTES: Final = 65_535
"""Of a connection and each stream, until the peer changes it."""

FRAME_BYTES_MAX: Final = 16_384
"""Of a frame's payload, unless the peer allows more."""

HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
HEALTH_WATCH: Final = "/grpc.health.v1.Health/Watch"
GENERATE: Final = "/vllm.grpc.engine.VllmEngine/Generate"
CONTROL_STATE: Final = "/ultraserve.v1.ControlService/GetState"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


def settings(**values: int) -> bytes:
    """A SETTINGS frame; names are this module's, in lower case."""
    numbers = {"header_table_size": HEADER_TABLE_SIZE, "initial_window_size": INITIAL_WINDOW_SIZE}
    entries = (
        numbers[name].to_bytes(2, "big") + value.to_bytes(4, "big")
        for name, value in values.items()
    )
    return frame(SETTINGS, 0, 0, b"".join(entries))


def message(payload: bytes = b"") -> bytes:
    """An uncompressed gRPC message."""
    return b"\0" + len(payload).to_bytes(4, "big") + payload


class Http2Wire:
    """One connection to a gRPC port; counts answers as they come if it `reads`."""

    def __init__(self, wire: Wire, *, reads: bool) -> None:
        self.wire = wire
        self.stream = -1
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._window_bytes = WINDOW_BYTES
        self._stream_bytes: dict[int, int] = {}  # windows of streams that we opened
        self._first_stream_bytes = WINDOW_BYTES
        self._moved = asyncio.Event()
        self._reading = asyncio.create_task(self._read()) if reads else None

    async def send(self, data: bytes) -> None:
        """Send frames; raises OSError after the server has closed."""
        await self.wire.send(data)

    def call(self, path: str, *extra: tuple[str, str], key: str = "", end: bool = False) -> bytes:
        """HEADERS of a call on a new stream, then number `stream`."""
        self.stream += 2
        self._stream_bytes[self.stream] = self._first_stream_bytes
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "a")]
        fields += [("te", "trailers"), ("content-type", "application/grpc"), *extra]
        if key:
            fields.append(("authorization", f"Bearer {key}"))
        block = self._encoder.encode(fields, huffman=False)
        flags = END_HEADERS | (END_STREAM if end else 0)
        return frame(HEADERS, flags, self.stream, block)

    def data(self, payload: bytes, *, end: bool = False) -> bytes:
        """DATA of the newest stream, in frames."""
        pieces = range(0, max(len(payload), 1), FRAME_BYTES_MAX)
        return b"".join(
            frame(
                DATA,
                END_STREAM if end and start + FRAME_BYTES_MAX >= len(payload) else 0,
                self.stream,
                payload[start : start + FRAME_BYTES_MAX],
            )
            for start in pieces
        )

    async def flow(self, payload: bytes) -> None:
        """DATA of the newest stream as fast as the server's windows allow; never its end.

        Returns early when the server resets the stream; needs `reads`.
        """
        stream, rest = self.stream, memoryview(payload)
        while rest and stream in self._stream_bytes:
            room = min(self._window_bytes, self._stream_bytes[stream], FRAME_BYTES_MAX)
            if room <= 0:
                self._moved.clear()
                await self._moved.wait()
                continue
            piece, rest = rest[:room], rest[room:]
            self._window_bytes -= len(piece)
            self._stream_bytes[stream] -= len(piece)
            await self.send(frame(DATA, 0, stream, bytes(piece)))

    async def rest(self, wait_s: float) -> None:
        """Await further answers until the connection or the time ends."""
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=wait_s)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self.wire.close()

    async def _read(self) -> None:
        answers = self.wire.attacker.answers
        with contextlib.suppress(HPACKError):
            try:
                while True:
                    head = await self.wire.reader.readexactly(9)
                    size = int.from_bytes(head[:3], "big")
                    payload = await self.wire.reader.readexactly(size) if size else b""
                    await self._heard(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
            except (OSError, EOFError):
                if not self.wire.attacker.has_closed(self.wire.writer):
                    answers.closed()
            finally:
                self._stream_bytes.clear()
                self._moved.set()

    async def _heard(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        answers = self.wire.attacker.answers
        if kind == HEADERS:
            fields = dict(self._decoder.decode(payload))
            if "grpc-status" in fields:
                answers.grpc(int(fields["grpc-status"]), str(fields.get("grpc-message", "")))
        elif kind == RST_STREAM:
            answers.by_status["rst_stream"] += 1
            self._stream_bytes.pop(stream, None)
        elif kind == GOAWAY:
            answers.by_status[f"goaway {int.from_bytes(payload[4:8], 'big')}"] += 1
        elif kind == SETTINGS and not flags & ACK:
            self._set(payload)
            self.wire.writer.write(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.wire.writer.write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._widen(stream, int.from_bytes(payload, "big"))
        elif kind == DATA and payload:
            size = len(payload).to_bytes(4, "big")
            self.wire.writer.write(frame(WINDOW_UPDATE, 0, 0, size))

    def _set(self, payload: bytes) -> None:
        for start in range(0, len(payload) - 5, 6):
            name = int.from_bytes(payload[start : start + 2], "big")
            value = int.from_bytes(payload[start + 2 : start + 6], "big")
            if name == INITIAL_WINDOW_SIZE:
                for stream in self._stream_bytes:
                    self._stream_bytes[stream] += value - self._first_stream_bytes
                self._first_stream_bytes = value
        self._moved.set()

    def _widen(self, stream: int, by_bytes: int) -> None:
        if stream == 0:
            self._window_bytes += by_bytes
        elif stream in self._stream_bytes:
            self._stream_bytes[stream] += by_bytes
        self._moved.set()


async def http2(
    attacker: Attacker, *, port: int = 0, reads: bool = True, first: bytes = settings()
) -> Http2Wire:
    """A connection after its preface, by default to the engine's port."""
    wire = await attacker.connect(
        port or attacker.target.grpc_port,
        protocols=("h2",),
        receive_buffer_bytes=0 if reads else 4096,
    )
    made = Http2Wire(wire, reads=reads)
    await made.send(PREFACE + first)
    return made
