"""Checks of requests that a front sends to the engine itself, past vLLM's app and its checks.

A request that cannot be computed, or not even be read, ends with an error, for which the front
answers 500; without the check it would end the engine, or the thread by which that hears, or be
answered with something else than was asked.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger
from vllm.v1.engine import EngineCoreRequest, EngineCoreRequestType, core
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.serial_utils import MsgpackDecoder

from serving.plugin.fast_limits import refuse_parameters
from serving.plugin.requests import NotComputed, refuse_request
from serving.process.front_program import CLOSE_FRONT, FRONT_CLIENT

# Below "vllm", where vLLM has configured handlers; a name of our own would print nothing.
logger = init_logger(f"vllm.{__name__}")

_TELL_WALL_S: Final = 1.0
"""Between lines about too many requests: one of HTTP can be a million."""

_CLOSED: Final = "_ultraserve_front_is_closed"


class TooManyRequests(NotComputed):
    """The engine has as many requests as it takes."""


class UndecodedRequest(msgspec.Struct, frozen=True):
    """What is known of a request that vLLM's decoder does not read, and why it does not."""

    request_id: str
    client_index: int
    reason: str


class FrontRequestDecoder(MsgpackDecoder):
    """vLLM's decoder; a request that it refuses is an `UndecodedRequest`."""

    def __init__(self, t: Any = None, *given: Any, **named: Any) -> None:
        super().__init__(t, *given, **named)
        self._decodes_requests = t is EngineCoreRequest

    def decode(self, bufs: Any) -> Any:
        """Decode; raises as vLLM's for what is no request, or has no id."""
        try:
            return super().decode(bufs)
        except Exception as error:
            if not self._decodes_requests:
                raise
            return _undecoded(bufs[0] if isinstance(bufs, list) else bufs, error)


def _undecoded(message: Any, error: Exception) -> UndecodedRequest:
    values = msgspec.msgpack.decode(message)
    at = EngineCoreRequest.__struct_fields__.index("client_index")
    client = values[at] if len(values) > at else FRONT_CLIENT  # defaults at the end are left out
    reason = " ".join(str(error).split())
    return UndecodedRequest(request_id=str(values[0]), client_index=client, reason=reason)


def refuse_front_request(
    request: EngineCoreRequest,
    *,
    context_tokens: int,
    vocabulary: int,
    requests: int,
    requests_max: int,
) -> None:
    """Raise NotComputed for a request that the fast engine cannot compute.

    The front counts requests of HTTP, of which one can be many here: with `requests_max` in the
    engine, of all clients, a further one is refused. More new tokens than the context of
    `context_tokens` has room for are fewer, as vLLM's scheduler would end such a request.
    """
    if requests >= requests_max:
        raise TooManyRequests(f"the engine has {requests} requests: expected below {requests_max}")
    refuse_request(request.sampling_params)
    params = request.sampling_params
    assert params is not None, "it would have been refused"
    refuse_parameters(params)
    prompt = request.prompt_token_ids
    if request.mm_features or request.prompt_embeds is not None or request.lora_request is not None:
        raise NotComputed("the prompt: expected tokens alone")
    if not prompt or len(prompt) >= context_tokens:
        count = len(prompt or ())
        raise NotComputed(f"the prompt: expected 1 to {context_tokens - 1} tokens, not {count}")
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        raise NotComputed(f"the prompt: expected tokens from 0 to {vocabulary - 1}")
    if params.n != 1:
        raise NotComputed(f"n: expected 1 of each request to the engine, not {params.n}")
    room = context_tokens - len(prompt)
    params.max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)


def check_front_requests(model_config: Any, requests_max: int) -> None:
    """Have this process's engine check what a front sends, and end if it hears no more."""
    limits = {"context_tokens": model_config.max_model_len, "requests_max": requests_max}
    limits["vocabulary"] = model_config.get_vocab_size()
    take, tell = EngineCore.preprocess_add_request, EngineCoreProc._handle_request_preproc_error
    told_s = -_TELL_WALL_S

    def checked(self: EngineCoreProc, request: EngineCoreRequest | UndecodedRequest) -> Any:
        if isinstance(request, UndecodedRequest):
            raise NotComputed(request.reason)
        if request.client_index == FRONT_CLIENT:
            if getattr(self, _CLOSED, False):
                raise NotComputed("the engine is drained")
            requests = sum(self.scheduler.get_request_counts()) + self.input_queue.qsize()
            refuse_front_request(request, requests=requests, **limits)
        return take(self, request)

    def told(self: EngineCoreProc, request: EngineCoreRequest | UndecodedRequest) -> None:
        nonlocal told_s
        error = sys.exception()
        if not isinstance(error, VLLMValidationError):
            tell(self, request)
            return
        now_s = time.monotonic()
        is_told = not isinstance(error, TooManyRequests) or now_s - told_s >= _TELL_WALL_S
        if is_told:
            logger.warning("request %s of the front is refused: %s", request.request_id, error)
        if is_told and isinstance(error, TooManyRequests):
            told_s = now_s
        self._send_error_outputs_to_client([request.request_id], request.client_index)

    EngineCore.preprocess_add_request = checked
    EngineCoreProc._handle_request_preproc_error = told
    EngineCoreProc.process_input_sockets = ending_with(EngineCoreProc.process_input_sockets)
    setattr(EngineCore, CLOSE_FRONT, _close_front)
    core.MsgpackDecoder = FrontRequestDecoder


def ending_with(listen: Callable[..., None]) -> Callable[..., None]:
    """`listen`, the loop of the thread by which an engine hears: the engine ends when it fails."""

    def heard(self: Any, *given: Any, **named: Any) -> None:
        try:
            listen(self, *given, **named)
        except Exception:
            logger.exception("the engine hears no requests any more, and ends")
            self.input_queue.put_nowait((EngineCoreRequestType.EXECUTOR_FAILED, b""))

    return heard


def _close_front(self: EngineCoreProc, closed: bool) -> None:
    setattr(self, _CLOSED, closed)
