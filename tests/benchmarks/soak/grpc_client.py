"""The soak's gRPC client: `vllm.grpc.engine.VllmEngine` with the published stubs."""

import asyncio
import time
from collections.abc import Sequence

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from tests.benchmarks.soak.asks import Ask, End, Ending, Fate, Fault

TOO_LATE_S = 300.0
REFUSALS = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
WRONG = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class GrpcClient:
    def __init__(self, address: str, *, keys: Sequence[str], body_bytes_max: int) -> None:
        self._keys, self._body_bytes_max = keys, body_bytes_max
        self._channel = grpc.aio.insecure_channel(
            address, options=[("grpc.max_send_message_length", -1), ("grpc.enable_http_proxy", 0)]
        )
        self._stub = pb_grpc.VllmEngineStub(self._channel)

    async def ask(self, ask: Ask) -> Ending:
        """Send it, and stay as long as its fate says."""
        began_s = time.monotonic()
        deadline_s = ask.leaves_after_s if ask.fate is Fate.DEADLINE else TOO_LATE_S
        call = self._stub.Generate(
            self._request(ask), metadata=self._metadata(ask), timeout=deadline_s
        )
        begun = asyncio.Event()
        ending = asyncio.ensure_future(_read(ask, call, begun))
        if ask.fate in (Fate.LEAVES, Fate.ABORTS):
            await asyncio.wait([ending], timeout=ask.leaves_after_s)
            if not ending.done():
                await self._end(ask, call)
        end, reason = await ending
        wall_s = time.monotonic() - began_s
        return Ending(end=end, reason=reason, begun=begun.is_set(), wall_s=wall_s)

    async def _end(self, ask: Ask, call: grpc.aio.UnaryStreamCall) -> None:
        if ask.fate is Fate.LEAVES:
            call.cancel()
            return
        request = pb.AbortRequest(request_ids=[ask.name])
        try:
            await self._stub.Abort(request, metadata=self._metadata(ask), timeout=TOO_LATE_S)
        except grpc.aio.AioRpcError:
            call.cancel()  # such as without a key: it goes all the same

    def _metadata(self, ask: Ask) -> tuple[tuple[str, str], ...]:
        said = [("x-ultraserve-class", "batch")] if ask.batch else []
        if ask.fault is Fault.UNKNOWN_KEY:
            said.append(("authorization", "Bearer sk-nobody-has-this-one"))
        elif ask.fault is not Fault.NO_KEY:
            said.append(("authorization", f"Bearer {self._keys[ask.key]}"))
        return tuple(said)

    def _request(self, ask: Ask) -> pb.GenerateRequest:
        prompt = ask.sent_prompt
        if ask.fault is Fault.TOO_BIG:
            prompt = [LARGE_TOKEN] * self._body_bytes_max
        if ask.fault is Fault.UNREADABLE:
            prompt = []
        return pb.GenerateRequest(
            request_id=ask.name,
            tokenized=pb.TokenizedInput(input_ids=prompt),
            sampling_params=pb.SamplingParams(
                temperature=1.0,
                top_p=-3.0 if ask.fault is Fault.BAD_PARAMETER else 1.0,
                repetition_penalty=1.0,
                max_tokens=ask.new_tokens,
                ignore_eos=True,
                n=ask.sequences,
                seed=ask.seed,
            ),
            stream=ask.streams,
        )

    async def close(self) -> None:
        await self._channel.close()


LARGE_TOKEN = 1_000
"""Two bytes on the wire."""


async def _read(ask: Ask, call: grpc.aio.UnaryStreamCall, begun: asyncio.Event) -> tuple[End, str]:
    completed: list[str] = []
    try:
        async for answer in call:
            begun.set()
            if answer.WhichOneof("response") == "complete":
                completed.append(answer.complete.finish_reason)
    except grpc.aio.AioRpcError as error:
        return _failure(ask, error)
    except asyncio.CancelledError:
        if call.cancelled() and ask.fate in (Fate.LEAVES, Fate.ABORTS):
            return End.LEFT, ""
        raise
    if ask.fate is Fate.ABORTS and "abort" in completed:
        return End.LEFT, ""
    if ask.fault is not Fault.NONE:
        return End.BROKEN, f"{ask.fault} was answered"
    if completed == ["length"] * ask.sequences:
        return End.FINISHED, ""
    return End.BROKEN, f"ended as {completed}, of {ask.sequences}"


def _failure(ask: Ask, error: grpc.aio.AioRpcError) -> tuple[End, str]:
    code, reason = error.code(), _reason(error)
    if ask.fate is Fate.DEADLINE and code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return End.LEFT, ""
    ended = code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED)
    if ask.fate in (Fate.LEAVES, Fate.ABORTS) and ended:
        return End.LEFT, ""
    if ask.fault is not Fault.NONE and code in WRONG:
        known = {Fault.TOO_BIG: "TOO_LARGE"}
        if code is not grpc.StatusCode.RESOURCE_EXHAUSTED or ask.fault in known:
            return End.INVALID, f"{ask.fault} {code.name}"
    if code in REFUSALS and reason:
        return End.REFUSED, reason.lower()
    return End.BROKEN, f"{code.name} {reason}: {(error.details() or '')[:200]}"


def _reason(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            info = error_details_pb2.ErrorInfo()
            for detail in status.details:
                if detail.Unpack(info):
                    return str(info.reason)
    return ""
