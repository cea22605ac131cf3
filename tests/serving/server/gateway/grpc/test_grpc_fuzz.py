"""Ten thousand calls that nobody would make: each is answered or refused, and nothing stays.

Messages of every method with any values, requests that are almost right, and bytes that are no
message, several at a time, with deadlines and cancellations.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from smg_grpc_proto import vllm_engine_pb2 as pb

from tests.serving.server.gateway.grpc.protobuf_messages import fields_of, messages
from tests.serving.server.gateway.grpc.served_grpc import (
    ServedGrpc,
    asking,
    served_grpc_server,
    told,
)

pytestmark = pytest.mark.slow

CALLS = 10_000
AT_A_TIME = 10

METHODS: list[MethodDescriptor] = [
    *pb.DESCRIPTOR.services_by_name["VllmEngine"].methods,
    *health_pb2.DESCRIPTOR.services_by_name["Health"].methods,
]
GENERATE = METHODS[0]
SAMPLING = fields_of(pb.SamplingParams.DESCRIPTOR)
ANY = {each.full_name: messages(each.input_type) for each in METHODS}

THE_SERVERS_FAULT = {
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.UNAVAILABLE,
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call; `raw` is what goes over the wire."""

    method: MethodDescriptor
    raw: bytes
    deadline_s: float
    cancelled_after: int | None
    metadata: tuple[tuple[str, str], ...]


@st.composite
def almost_right(draw: st.DrawFn) -> bytes:
    """A request that runs, but for a field or two."""
    request = asking(
        draw(st.sampled_from(["a", "b", "c", "d"])),
        draw(st.lists(st.integers(0, 1_100), min_size=1, max_size=40)),
        stream=draw(st.booleans()),
        max_tokens=draw(st.integers(0, 40)),
        n=draw(st.integers(0, 3)),
    )
    for name in draw(st.lists(st.sampled_from(sorted(SAMPLING)), max_size=2)):
        request.sampling_params.MergeFrom(pb.SamplingParams(**{name: draw(SAMPLING[name])}))
    return bytes(request.SerializeToString())


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """A message with one byte changed, or without its end."""
    raw = bytearray(draw(almost_right()))
    place = draw(st.integers(0, len(raw) - 1))
    if draw(st.booleans()):
        return bytes(raw[:place])
    raw[place] ^= draw(st.integers(1, 255))
    return bytes(raw)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    kind = draw(st.sampled_from(["right", "right", "right", "bent", "any", "bytes"]))
    method = GENERATE if kind in ("right", "bent") else draw(st.sampled_from(METHODS))
    if kind == "right":
        raw = draw(almost_right())
    elif kind == "bent":
        raw = draw(bent())
    elif kind == "any":
        raw = draw(ANY[method.full_name]).SerializeToString()
    else:
        raw = draw(st.binary(max_size=64))
    words = st.sampled_from(["interactive", "batch", "urgent", ""])
    return Call(
        method=method,
        raw=raw,
        deadline_s=draw(st.sampled_from([0.0, 0.05, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])),
        cancelled_after=draw(st.none() | st.integers(0, 3)),
        metadata=tuple(draw(st.lists(st.tuples(st.just("x-ultraserve-class"), words), max_size=1))),
    )


@dataclass
class Fuzzed:
    """A server in a thread of its own, and what became of the calls."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    codes: Counter[str] = field(default_factory=Counter)
    held: Any = None
    at: ServedGrpc | None = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60.0)

    async def open(self) -> None:
        self.held = served_grpc_server(ranks=2, step_s=0.0005)
        self.at = await self.held.__aenter__()

    async def close(self) -> None:
        await self.held.__aexit__(None, None, None)

    async def one(self, call: Call) -> None:
        assert self.at is not None
        name = f"/{call.method.containing_service.full_name}/{call.method.name}"
        channel = self.at.channel
        options = {"timeout": call.deadline_s, "metadata": call.metadata}
        if not call.method.server_streaming:
            unary = channel.unary_unary(name)(call.raw, **options)
            code, trailers = await unary.code(), await unary.trailing_metadata()
        else:
            stream = channel.unary_stream(name)(call.raw, **options)
            await self._read(stream, call.cancelled_after)
            code, trailers = await stream.code(), await stream.trailing_metadata()
        self.codes[code.name] += 1
        ours = code not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
        packed = dict(trailers or ()).get("grpc-status-details-bin")
        assert code not in THE_SERVERS_FAULT, (code, call)
        if ours and code is not grpc.StatusCode.DEADLINE_EXCEEDED:  # which a client tells itself
            assert packed is not None, (code, call)
            assert status_pb2.Status.FromString(packed).code == code.value[0]

    async def _read(self, stream: Any, cancelled_after: int | None) -> None:
        try:
            answers = 0
            while answers != cancelled_after and await stream.read() is not grpc.aio.EOF:
                answers += 1
            stream.cancel()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass  # its code is looked at

    async def all(self, batch: list[Call]) -> None:
        await asyncio.gather(*map(self.one, batch))


@pytest.fixture(scope="module")
def fuzzed() -> Any:
    server = Fuzzed()
    thread = threading.Thread(target=server.loop.run_forever)
    thread.start()
    server.run(server.open())
    yield server
    server.run(server.close())
    server.loop.call_soon_threadsafe(server.loop.stop)
    thread.join(10)


@settings(
    max_examples=CALLS // AT_A_TIME,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(batch=st.lists(calls(), min_size=AT_A_TIME, max_size=AT_A_TIME))
def test_no_call_breaks_the_server(fuzzed: Fuzzed, batch: list[Call]) -> None:
    fuzzed.run(fuzzed.all(batch))


def test_after_all_of_them_nothing_is_left_and_the_next_request_is_answered(
    fuzzed: Fuzzed,
) -> None:
    at = fuzzed.at
    assert at is not None

    async def check() -> None:
        await asyncio.wait_for(at.is_empty(), 20.0)
        assert not at.engine.errored
        answers = await told(at.stub.Generate(asking("after all")))
        assert answers[-1].complete.finish_reason == "length"
        await at.is_empty()

    fuzzed.run(check())
    assert fuzzed.codes.total() >= CALLS
    assert fuzzed.codes["OK"] > CALLS / 20, fuzzed.codes  # some of it was right
