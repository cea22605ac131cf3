import asyncio
from typing import Any

import grpc
import pytest

from emulator.errors import ConfigError
from serving.plugin.requests import RefusedRequest
from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from serving.server.gateway.grpc.described_context import CallMeaning, DescribedContext
from serving.server.gateway.grpc.rpc_errors import RpcFailure

Code = grpc.StatusCode


def failure(
    code: grpc.StatusCode, text: str = "", error: BaseException | None = None, *, gone: bool = False
) -> RpcFailure:
    meaning = CallMeaning(subject="key alice", engine_gone=lambda: gone)
    return meaning.failure(code, text, error)


class Invalid(ValueError):
    def __init__(self, parameter: str | None) -> None:
        self.parameter = parameter


@pytest.mark.parametrize(
    ("text", "parameter", "field"),
    [
        ("temperature must be non-negative, got -1.", "temperature", "sampling_params.temperature"),
        ("min_tokens must be at most max_tokens", None, "sampling_params.min_tokens"),
        ("data_parallel_rank 5 is out of range", None, "data_parallel_rank"),
        ("Token id 9 is out of vocabulary", None, ""),
        ("too much", "seldom_seen", "seldom_seen"),
        ("at most 512 input tokens", "input_tokens", "input"),
        ("The decoder prompt is longer than the maximum model length of 512.", None, "input"),
    ],
)
def test_the_wrong_field_is_the_one_that_vllm_names_first_and_none_when_it_names_none(
    text: str, parameter: str | None, field: str
) -> None:
    told_of = failure(Code.INVALID_ARGUMENT, text, Invalid(parameter))

    assert (told_of.code, told_of.message, told_of.field) == (Code.INVALID_ARGUMENT, text, field)
    assert (told_of.reason == "PROMPT_TOO_LONG") == (field == "input")


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.UNKNOWN])
def test_an_inner_failure_is_the_engines_end_when_it_has_ended(code: grpc.StatusCode) -> None:
    inside = failure(code, "/srv/key.pem", RuntimeError("/srv/key.pem"))
    gone = failure(code, "EngineCore died", RuntimeError(), gone=True)

    assert (inside.code, inside.retry_after_s) == (Code.INTERNAL, None)
    assert "key.pem" not in inside.message
    assert gone.code is Code.UNAVAILABLE
    assert gone.retry_after_s is not None


def test_a_refusal_stays_itself_whatever_code_the_handler_made_of_it() -> None:
    refused = Refused(
        RefusalReason.TOKENS_PER_MINUTE, "none left", retry_after_s=9.0, rate=RateState()
    )

    for error in (refused, RefusedRequest(refused)):
        told_of = failure(Code.INTERNAL, "?", error)
        assert (told_of.code, told_of.retry_after_s) == (Code.RESOURCE_EXHAUSTED, 9.0)
        assert told_of.violations == {"key alice": "none left"}
    wrong = ConfigError(field="n", value=0, expected="1")
    assert failure(Code.UNKNOWN, "?", wrong).field == "n"


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED])
def test_what_is_busy_for_a_moment_says_when_to_come_back(code: grpc.StatusCode) -> None:
    told_of = failure(code, "busy")

    assert (told_of.code, told_of.reason) == (code, code.name)
    assert told_of.retry_after_s is not None
    assert bool(told_of.violations) == (code is Code.RESOURCE_EXHAUSTED)


def test_a_status_without_words_gets_some() -> None:
    assert failure(Code.NOT_FOUND).message == "not found"


class Call:
    """A call's context as far as a code that was set and left goes."""

    def __init__(self, code: Any, details: Any) -> None:
        self._code, self._details = code, details
        self.aborted: list[grpc.StatusCode] = []

    def code(self) -> Any:
        return self._code

    def details(self) -> Any:
        return self._details

    async def abort(self, code: grpc.StatusCode, *_: Any) -> None:
        self.aborted.append(code)
        raise InterruptedError


@pytest.mark.parametrize(
    ("code", "details", "ends"),
    [(0, "", False), (Code.OK, "", False), (3, b"no", True), (Code.NOT_FOUND, "no", True)],
)
def test_a_code_that_was_set_ends_the_call_unless_it_is_ok(
    code: Any, details: Any, ends: bool
) -> None:
    call = Call(code, details)
    described = DescribedContext(call, CallMeaning(subject="", engine_gone=lambda: False))

    async def settle() -> None:
        await described.settle()

    if ends:
        with pytest.raises(InterruptedError):
            asyncio.run(settle())
    else:
        asyncio.run(settle())
    assert bool(call.aborted) == ends
