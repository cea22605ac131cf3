"""Streams tokens from `vllm.grpc.engine.VllmEngine.Generate`: token ids in and out.

The stubs are the published ones (smg-grpc-proto). A chunk is stamped when grpc.aio hands over the
parsed message, the earliest moment there is.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import grpc.aio
import msgspec
import numpy as np
from google.protobuf import json_format
from smg_grpc_proto import vllm_engine_pb2 as pb  # type: ignore[import-untyped]
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from loadgen.clients.certificates import ca_bytes
from loadgen.clients.client import ClientSpec, Reply
from loadgen.clients.server_json import short_line
from loadgen.clients.token_stream import TokenStream
from loadgen.errors import OptionError
from loadgen.records.request import Request
from loadgen.records.result import ABORTED, STREAM, TIMEOUT

MESSAGE_BYTES_MAX: Final = 1 << 26  # 64 MiB; a step's tokens, or all of a reply, are far less

_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),  # a long context is a long list of ids
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
)


@asynccontextmanager
async def open_grpc(
    spec: ClientSpec, *, on_chunks: Callable[[int], None]
) -> AsyncIterator["VllmGrpcClient"]:
    """Open a channel to `spec.grpc_target`; closes it at the end.

    Encrypted if the server's URL is https or `spec.ca` is given. Raises OptionError as
    `VllmGrpcClient`, and for an unusable `ca`.
    """
    assert spec.grpc_target is not None, "ClientSpec refuses grpc without a target"
    if urlsplit(spec.url).scheme == "https" or spec.ca is not None:
        roots = None if spec.ca is None else ca_bytes(spec.ca)
        channel = grpc.aio.secure_channel(
            spec.grpc_target, grpc.ssl_channel_credentials(roots), options=_OPTIONS
        )
    else:
        channel = grpc.aio.insecure_channel(spec.grpc_target, options=_OPTIONS)
    async with channel:
        yield VllmGrpcClient(channel, spec, on_chunks=on_chunks)


class VllmGrpcClient:
    """Sends requests whose prompts are token ids; `on_chunks` is called as chunks arrive.

    Raises OptionError for `extra_body` that is no SamplingParams and for headers that are no
    metadata.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        spec: ClientSpec,
        *,
        on_chunks: Callable[[int], None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._generate = pb_grpc.VllmEngineStub(channel).Generate
        self._metadata = _metadata(spec)
        self._temperature = spec.temperature
        self._ignore_eos = spec.ignore_eos
        self._extra = spec.extra_body
        self._timeout_s = spec.timeout_s
        self._on_chunks = on_chunks
        self._now_ns = now_ns
        self._prefix = uuid.uuid4().hex  # ids are unique at the server, among all of its clients
        self._sent = 0
        _sampling(spec.extra_body, pb.SamplingParams())

    async def send(self, request: Request) -> Reply:
        """Send and read the whole reply; see `RequestClient.send`. Raises OptionError for a text
        prompt.
        """
        message = self._message(request)
        stream = TokenStream(asked_tokens=request.output_tokens)
        error: str | None
        sent_ns = self._now_ns()
        call = self._generate(message, metadata=self._metadata, timeout=self._timeout_s)
        try:
            async for response in call:
                self._on_chunks(stream.feed(response, self._now_ns()))
                if stream.broken:
                    call.cancel()
                    break
            error, words = (STREAM, stream.problem) if stream.problem else (None, "")
        except asyncio.CancelledError:  # the run's way to abort; grpc.aio has ended the call
            error, words = ABORTED, "the run was interrupted"
        except grpc.aio.AioRpcError as failure:
            error, words = _failure(failure, self._timeout_s)
        return Reply(
            sent_ns=sent_ns,
            ended_ns=self._now_ns(),
            chunk_ns=np.array(stream.chunk_ns, dtype=np.int64),
            input_tokens=stream.input_tokens,
            output_tokens=stream.output_tokens,
            cached_tokens=stream.cached_tokens,
            error=error,
            message=words,
            token_ids=tuple(stream.token_ids) if request.keep_reply else None,
        )

    def _message(self, request: Request) -> Any:
        prompt = request.prompt
        if isinstance(prompt, str):
            raise OptionError("--prompts", "text", "token-ids for gRPC")
        params = pb.SamplingParams(
            temperature=self._temperature,
            top_p=1.0,
            repetition_penalty=1.0,
            max_tokens=request.output_tokens,
            ignore_eos=self._ignore_eos and request.output_schema is None,
            n=1,
        )
        if request.output_schema is not None:
            params.json_schema = msgspec.json.encode(request.output_schema).decode()
        _sampling(self._extra, params)
        self._sent += 1
        return pb.GenerateRequest(
            request_id=f"{self._prefix}-{self._sent}",
            tokenized=pb.TokenizedInput(input_ids=prompt),
            sampling_params=params,
            stream=True,
        )


def _sampling(extra: Mapping[str, Any], params: Any) -> None:
    """Put `extra` into SamplingParams, in place."""
    if not extra:
        return
    try:
        json_format.ParseDict(dict(extra), params)
    except json_format.ParseError as error:
        expected = f"fields of gRPC's SamplingParams ({error})"
        raise OptionError("--extra-body", dict(extra), expected) from error


def _metadata(spec: ClientSpec) -> tuple[tuple[str, str], ...]:
    said = {"authorization": f"Bearer {spec.key}"} if spec.key else {}
    said |= {name.lower(): value for name, value in spec.headers.items()}
    return tuple(said.items())


def _failure(failure: grpc.aio.AioRpcError, timeout_s: float) -> tuple[str, str]:
    """The kind of a failed call, and its message in one line."""
    code = failure.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TIMEOUT, f"no complete reply within {timeout_s:g} s"
    return code.name, short_line(failure.details() or "")
