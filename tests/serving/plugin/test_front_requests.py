"""What a front may send to the fast engine itself: all that it computes, and nothing else."""

import queue
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest, EngineCoreRequestType
from vllm.v1.serial_utils import MsgpackEncoder

from serving.plugin.front_requests import (
    FrontRequestDecoder,
    TooManyRequests,
    UndecodedRequest,
    ending_with,
    refuse_front_request,
)
from serving.plugin.requests import NotComputed
from tests.serving.plugin.core_request import core_request

CONTEXT_TOKENS = 16
VOCABULARY = 100
REQUESTS_MAX = 3


def request(prompt: list[int] | None, params: Any = None, **changed: Any) -> EngineCoreRequest:
    return core_request("cmpl-1", prompt, params or SamplingParams(max_tokens=4), **changed)


def refuse(asked: EngineCoreRequest, *, requests: int = 0) -> None:
    refuse_front_request(
        asked,
        context_tokens=CONTEXT_TOKENS,
        vocabulary=VOCABULARY,
        requests=requests,
        requests_max=REQUESTS_MAX,
    )


def sent(**changed: Any) -> list[bytes]:
    """A request's frames, with other parameters of sampling than vLLM's class lets in."""
    (frame,) = MsgpackEncoder().encode(request([1, 2]))
    values = msgspec.msgpack.decode(frame)
    at = EngineCoreRequest.__struct_fields__.index("sampling_params")
    values[at] = values[at] | changed
    return [msgspec.msgpack.encode(values)]


@given(
    st.lists(st.integers(-2, VOCABULARY + 1), max_size=CONTEXT_TOKENS + 2),
    st.none() | st.integers(1, 3 * CONTEXT_TOKENS),
)
def test_a_request_that_is_let_in_fits_the_context_and_the_vocabulary(
    prompt: list[int], max_tokens: int | None
) -> None:
    asked = request(prompt, SamplingParams(max_tokens=max_tokens))
    fits = 0 < len(prompt) < CONTEXT_TOKENS and all(0 <= each < VOCABULARY for each in prompt)

    if not fits:
        with pytest.raises(NotComputed, match="the prompt: expected"):
            refuse(asked)
        return
    refuse(asked)

    assert asked.sampling_params is not None
    left = CONTEXT_TOKENS - len(prompt)
    assert asked.sampling_params.max_tokens == min(left, max_tokens or left)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (request(None), "the prompt: expected 1 to 15 tokens, not 0"),
        (request([1], SamplingParams(logprobs=1)), "logprobs: not with this server's"),
        (request([1], SamplingParams(n=2)), "n: expected 1"),
        (request([1], object()), "object: only text generation"),
        (request([1], mm_features=[object()]), "the prompt: expected tokens alone"),
    ],
)
def test_the_rest_is_refused_by_name(asked: EngineCoreRequest, line: str) -> None:
    with pytest.raises(NotComputed, match=line):
        refuse(asked)


@given(st.integers(0, 2 * REQUESTS_MAX))
def test_the_engine_takes_no_more_requests_than_the_server_has_room_for(requests: int) -> None:
    if requests < REQUESTS_MAX:
        refuse(request([1]), requests=requests)
        return
    with pytest.raises(TooManyRequests, match=f"the engine has {requests} requests"):
        refuse(request([1]), requests=requests)


@pytest.mark.parametrize("wrong", [{"temperature": 99.0}, {"top_p": -1.0}, {"max_tokens": "x"}])
def test_a_request_that_vllm_does_not_decode_keeps_its_id_and_is_no_error(
    wrong: dict[str, Any],
) -> None:
    decoded = FrontRequestDecoder(EngineCoreRequest).decode(sent(**wrong))

    assert isinstance(decoded, UndecodedRequest)
    assert (decoded.request_id, decoded.client_index) == ("cmpl-1", 0)
    assert decoded.reason
    assert FrontRequestDecoder(EngineCoreRequest).decode(*sent(**wrong)) == decoded


def test_other_messages_are_decoded_as_by_vllm() -> None:
    decoded = FrontRequestDecoder(EngineCoreRequest).decode(sent(temperature=0.5))

    assert isinstance(decoded, EngineCoreRequest)
    assert FrontRequestDecoder().decode(msgspec.msgpack.encode(["cmpl-1"])) == ["cmpl-1"]
    with pytest.raises(msgspec.DecodeError):
        FrontRequestDecoder().decode(b"")


def test_an_engine_that_hears_no_more_is_told_to_end() -> None:
    def fails(engine: Any) -> None:
        raise ValueError("no message")

    engine = SimpleNamespace(input_queue=queue.Queue())

    ending_with(fails)(engine)

    assert engine.input_queue.get_nowait()[0] == EngineCoreRequestType.EXECUTOR_FAILED
