"""A gRPC engine of known replies, with the published stubs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc


@dataclass(kw_only=True)
class KnownEngine(pb_grpc.VllmEngineServicer):  # type: ignore[misc]
    """Answers with the prompt's ids repeatedly, `at_once` tokens a message.

    As in the published servicer, `completion_tokens` counts those of the message. `code` refuses
    every request; `finish_reason` ends the replies, None never; `completes` sends the last message.
    """

    code: grpc.StatusCode | None = None
    finish_reason: str = "length"
    completes: bool = True
    endless: bool = False
    cached_tokens: int = 2
    at_once: int = 1
    step_s: float = 0.0
    requests: list[Any] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0

    async def Generate(  # noqa: N802  the stub's name
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata() or ()))
        if self.code is not None:
            await context.abort(self.code, "no\n\x1b[2Jroom")
        ids = list(request.tokenized.input_ids)
        tokens = request.sampling_params.max_tokens
        counts = {"prompt_tokens": len(ids), "cached_tokens": self.cached_tokens}
        try:
            for at in range(tokens):
                await asyncio.sleep(self.step_s)
                chunk = pb.GenerateStreamChunk(
                    token_ids=[ids[at % len(ids)]] * self.at_once, completion_tokens=1, **counts
                )
                yield pb.GenerateResponse(chunk=chunk)
                if self.endless:
                    await asyncio.sleep(3600)
        except (asyncio.CancelledError, GeneratorExit):  # while it waits, or a message is sent
            self.cancelled += 1
            raise
        if self.completes:
            yield pb.GenerateResponse(
                complete=pb.GenerateComplete(
                    finish_reason=self.finish_reason, completion_tokens=1, **counts
                )
            )

    @asynccontextmanager
    async def serving(
        self, credentials: grpc.ServerCredentials | None = None
    ) -> AsyncIterator[str]:
        server = grpc.aio.server()
        pb_grpc.add_VllmEngineServicer_to_server(self, server)
        if credentials is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        try:
            yield f"localhost:{port}"
        finally:
            await server.stop(grace=None)
