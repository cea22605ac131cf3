"""Guards every gRPC call: caller, rights, message and admission.

Without the right, or at a closed gateway, a call is refused on its headers, its message unread. A
generation that ends early, by client, deadline or time limit, is aborted at once.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio

from emulator.errors import UltraServeError
from serving.access.key_ring import KeyRing
from serving.policy.admission.entry import Outcome
from serving.server.connections.grpc_relay import NamedConnections
from serving.server.gateway.admission_controller import AdmissionController, current_permit
from serving.server.gateway.grpc.call_messages import CallMessages, ReadMessage, reader
from serving.server.gateway.grpc.described_context import CallMeaning, DescribedContext
from serving.server.gateway.grpc.generate_request import Asked, aborted_ids, asked_of
from serving.server.gateway.grpc.message_turns import HeldMessage, MessageTurns
from serving.server.gateway.grpc.rpc_caller import ABORT, GENERATE, Caller, caller_of, needs_no_key
from serving.server.gateway.grpc.rpc_errors import (
    CallRefused,
    abort_for,
    exhausted,
    failure_of,
    not_served,
    refused,
    refusing,
)
from serving.server.gateway.grpc.stranger_answers import AnsweredContext, StrangerAnswers
from serving.server.gateway.ingress_account import IngressAccount
from serving.server.gateway.readiness import Readiness

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

CALLS_MAX: Final = 256
"""Calls at a time beside generations and probes; one more is refused."""

PROBE_BYTES_MAX: Final = 4 * 2**10
"""Bytes of a message without a key; the longest useful one names a service."""

SLACK_BYTES: Final = 64 * 2**10
"""Bytes above a message's limit that gRPC still takes, so that the guard can explain the
refusal."""

_CALLS_RETRY_S: Final = 1.0

_BY_REASON: Final = {"abort": Outcome.ABORTED, "error": Outcome.FAILED}
"""Outcomes by finish reason; all others are finished."""

_PROBES: Final = "/grpc.health.v1.Health/"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Limits of one call: bytes of its message, wall seconds, tokens of its context, whether its KV
    may be another engine's.

    `queue_wall_s_max` bounds batch work's wait for its turn, before its time begins.
    """

    message_bytes_max: int
    wall_s_max: float
    queue_wall_s_max: float
    context_tokens: int
    exchanges_kv: bool = False


class GrpcGuard(grpc.aio.ServerInterceptor):
    """Interceptor of all methods of one server; `names` is told whose connections they are.

    `engine` is vLLM's AsyncLLM.
    """

    def __init__(
        self,
        engine: Any,
        *,
        admission: AdmissionController,
        keys: KeyRing,
        limits: CallLimits,
        readiness: Readiness,
        ingress: IngressAccount,
        names: NamedConnections,
    ) -> None:
        self._engine = engine
        self._names = names
        self._answers = StrangerAnswers(names.cut_off, cut_off_late=names.cut_off_stranger)
        self._readiness = readiness
        self._admission = admission
        self._keys = keys
        self._limits = limits
        self._turns = MessageTurns(
            ingress, message_bytes_max=limits.message_bytes_max + SLACK_BYTES
        )
        self._generating: set[str] = set()
        self._calls = 0

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """The method's handler behind this guard, or one that refuses."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        subject = "engine"
        try:
            if handler is None:
                raise CallRefused(not_served(method))
            caller = caller_of(method, handler_call_details.invocation_metadata, self._keys)
            subject = f"key {caller.client.name}"
            if method == GENERATE:
                refusal = await self._readiness.refusal() or self._admission.would_refuse(
                    caller.client, caller.work_class
                )
                if refusal is not None:
                    self._admission.count_refusal(refusal, caller.work_class)
                    raise refusal
        except UltraServeError as error:
            return refusing(failure_of(error, subject=subject))
        return self._guarded(handler, method, caller)

    def _guarded(self, handler: Any, method: str, caller: Caller) -> Any:
        """`handler` behind this guard, which reads messages and writes answers itself.

        A stream both ways: for other kinds of call gRPC reads the message before it asks.
        """
        keyless = needs_no_key(method)
        bytes_max = PROBE_BYTES_MAX if keyless else self._limits.message_bytes_max
        read = reader(handler.request_deserializer, bytes_max=bytes_max)
        inner = _behaviour(handler)

        async def run(coming: AsyncIterator[ReadMessage], context: Any) -> None:
            if keyless:
                self._names.took(context.peer())
                context = AnsweredContext(context, self._answers)
                turn = partial(self._turns.of_stranger, context.peer())
            else:
                self._names.showed(context.peer(), caller.client.name)
                several: bool = handler.request_streaming
                turn = partial(self._turns.of_key, caller.client.name, of_several=several)
            messages = CallMessages(coming, turn, read(b""))
            asked = messages.all() if handler.request_streaming else messages
            await self._run(inner, asked, context, method=method, caller=caller)

        return grpc.stream_stream_rpc_method_handler(run, read, handler.response_serializer)

    async def _run(
        self, inner: Any, messages: Any, context: Any, *, method: str, caller: Caller
    ) -> None:
        meaning = CallMeaning(
            subject=f"key {caller.client.name}", engine_gone=lambda: self._engine.errored
        )
        described = DescribedContext(context, meaning)
        try:
            if not isinstance(messages, CallMessages):
                await self._other(inner, messages, described)
                return
            message, held = await messages.one()
            try:
                if method == GENERATE:
                    await self._generate(inner, message, described, caller, held)
                    return
                if method == ABORT:
                    message.request_ids[:] = aborted_ids(message, caller.client)
                is_probe = method.startswith(_PROBES)
                await (_call if is_probe else self._other)(inner, message, described)
            finally:
                held.let_go()
        except (grpc.aio.AbortError, grpc.aio.InternalError):
            raise  # the call has its status, or nobody is there to hear it
        except UltraServeError as error:
            await abort_for(context, failure_of(error, subject=meaning.subject))
        except NotImplementedError:  # as generated code has it for what a servicer leaves out
            await abort_for(context, not_served(method))
        except Exception as error:
            logger.exception("%s failed", method)
            await abort_for(context, meaning.failure(grpc.StatusCode.INTERNAL, "", error))

    async def _other(self, inner: Any, message: Any, context: DescribedContext) -> None:
        if self._calls >= CALLS_MAX:
            message = f"at most {CALLS_MAX} calls at a time"
            raise CallRefused(exhausted("CALLS", message, retry_after_s=_CALLS_RETRY_S))
        self._calls += 1
        try:
            await _call(inner, message, context)
        finally:
            self._calls -= 1

    async def _generate(
        self, inner: Any, message: Any, context: DescribedContext, caller: Caller, held: HeldMessage
    ) -> None:
        left_s = context.time_remaining()
        if left_s is not None and left_s <= 0:
            raise refused(
                grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE", "the deadline was over on arrival"
            )
        asked = asked_of(
            message,
            caller.client,
            caller.work_class,
            context_tokens=self._limits.context_tokens,
            exchanges_kv=self._limits.exchanges_kv,
        )
        if asked.engine_id in self._generating:
            raise refused(
                grpc.StatusCode.ALREADY_EXISTS,
                "REQUEST_ID_IN_USE",
                "request_id: expected one that none of your running requests has",
            )
        with self._admission.enter(asked.work) as permit:
            ticketed = current_permit.set(permit)
            self._generating.add(asked.engine_id)
            outcome = None
            try:
                await permit.turn()  # its time begins when the engine may have it, as over HTTP
                outcome = await self._answered(inner, asked, context, held)
            finally:
                if outcome is not Outcome.FINISHED:
                    await self._end(asked)
                self._generating.discard(asked.engine_id)
                current_permit.reset(ticketed)
            if outcome is None:
                permit.leave(Outcome.ABORTED)
                raise refused(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    "TIME_LIMIT",
                    f"a request may take {self._limits.wall_s_max:g} s here",
                )
            permit.leave(outcome)

    async def _answered(
        self, inner: Any, asked: Asked, context: DescribedContext, held: HeldMessage
    ) -> Outcome | None:
        """Write the whole answer; returns its outcome, None when its time is over."""
        outcome, write = Outcome.FINISHED, context.write
        try:
            async with (
                asyncio.timeout(self._limits.wall_s_max) as limit,
                aclosing(inner(asked.message, context)) as answers,
            ):
                async for answer in answers:
                    held.let_go()  # the engine has what the message said
                    if answer.HasField("complete"):
                        outcome = _BY_REASON.get(answer.complete.finish_reason, outcome)
                        if outcome is Outcome.FAILED:
                            self._raise_why()
                    await write(answer)
        except TimeoutError:
            if not limit.expired():
                raise  # the handler's own
            return None
        except grpc.aio.InternalError:
            return Outcome.ABORTED  # the client went while it was written to
        return outcome

    def _raise_why(self) -> None:
        failure = self._readiness.failure()
        if failure is not None:
            raise failure

    async def _end(self, asked: Asked) -> None:
        if self._engine.errored:
            return
        try:
            await asyncio.shield(self._engine.abort([asked.engine_id]))
        except Exception:
            logger.exception("request %s was not ended", asked.engine_id)


def _behaviour(handler: Any) -> Any:
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(kind for kind in kinds if kind is not None)


async def _call(inner: Any, message: Any, context: DescribedContext) -> None:
    """Call a handler of any of gRPC's kinds; its stream is closed before this returns."""
    if not inspect.isasyncgenfunction(inner):
        answer = await inner(message, context)
        await context.settle()
        if answer is not None:  # a stream of the library's own has written itself
            await context.write(answer)
        return
    async with aclosing(inner(message, context)) as answers:
        async for answer in answers:
            await context.write(answer)
    await context.settle()
