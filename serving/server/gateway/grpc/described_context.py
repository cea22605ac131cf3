"""Adds google.rpc's details to the errors of handlers that give a code and a sentence.

Each becomes an `RpcFailure` with the wrong field and the retry delay, without internals.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import grpc

from emulator.errors import UltraServeError
from serving.server.gateway.grpc.generate_request import (
    INVALID_FIELD,
    PROMPT_TOO_LONG,
    SAMPLING_FIELDS,
)
from serving.server.gateway.grpc.rpc_errors import RpcFailure, abort_for, failure_of
from serving.server.gateway.readiness import engine_gone

_BUSY_RETRY_S: Final = 1.0
"""Assumed, for temporary refusals by the engine itself, which name no time."""

_PROMPT_PARAMETERS: Final = ("input_tokens", "input_text")
_PROMPT_LENGTH: Final = re.compile(r"longer than the maximum model length|maximum context length")

_ERRORS: Final = {code.value[0]: code for code in grpc.StatusCode if code is not grpc.StatusCode.OK}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMeaning:
    """Facts for a call's failure: the limits' owner, and whether the engine has died."""

    subject: str
    engine_gone: Callable[[], bool]

    def failure(self, code: grpc.StatusCode, text: str, error: BaseException | None) -> RpcFailure:
        """The failure of a call whose handler ended with `code` and `text` on `error`."""
        if isinstance(error, UltraServeError):
            return failure_of(error, subject=self.subject)
        if code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
            return failure_of(engine_gone() if self.engine_gone() else Exception())
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            return _invalid(text, getattr(error, "parameter", None))
        busy = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
        exhausted = code is grpc.StatusCode.RESOURCE_EXHAUSTED
        return RpcFailure(
            code,
            code.name,
            text or code.name.lower().replace("_", " "),
            retry_after_s=_BUSY_RETRY_S if busy else None,
            violations={"engine": text} if exhausted else {},
        )


class DescribedContext:
    """The call's own context, but for errors with details."""

    def __init__(self, context: Any, meaning: CallMeaning) -> None:
        self._context = context
        self._meaning = meaning

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        """End the call as gRPC's own does, with details of the exception being handled."""
        failure = self._meaning.failure(code, details, sys.exception())
        await abort_for(self._context, failure, trailers=tuple(trailing_metadata))

    async def settle(self) -> None:
        """End the call with the error code that its handler has set, if any."""
        code = self._context.code()
        number = code.value[0] if isinstance(code, grpc.StatusCode) else code
        if number in _ERRORS:
            details = self._context.details() or ""
            text = details.decode("utf-8", "replace") if isinstance(details, bytes) else details
            failure = self._meaning.failure(_ERRORS[number], text, None)
            await abort_for(self._context, failure)


def _invalid(text: str, parameter: object) -> RpcFailure:
    too_long = parameter in _PROMPT_PARAMETERS or _PROMPT_LENGTH.search(text) is not None
    return RpcFailure(
        grpc.StatusCode.INVALID_ARGUMENT,
        PROMPT_TOO_LONG if too_long else INVALID_FIELD,
        text,
        field="input" if too_long else _field(text, parameter),
    )


def _field(text: str, parameter: object) -> str:
    words = [str(parameter)] if parameter is not None else re.findall(r"\w+", text)
    named = next((word for word in words if word in SAMPLING_FIELDS), None)
    if named is not None:
        return f"sampling_params.{named}"
    if parameter is not None:
        return str(parameter)
    return "data_parallel_rank" if "data_parallel_rank" in words else ""
