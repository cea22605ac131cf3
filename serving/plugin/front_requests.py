"""Checks of requests that a front sends to the engine itself, past vLLM's app and its checks.

A request that cannot be computed ends with an error, for which the front answers 500; without the
check it would end the engine, or be answered with something else than was asked.
"""

import sys
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore, EngineCoreProc

from serving.plugin.fast_limits import refuse_parameters
from serving.plugin.requests import NotComputed, refuse_request
from serving.process.front_program import FRONT_CLIENT

# Below "vllm", where vLLM has configured handlers; a name of our own would print nothing.
logger = init_logger(f"vllm.{__name__}")


def refuse_front_request(
    request: EngineCoreRequest, *, context_tokens: int, vocabulary: int
) -> None:
    """Raise NotComputed for a request that the fast engine cannot compute.

    More new tokens than the context of `context_tokens` has room for are fewer, as vLLM's scheduler
    would end such a request.
    """
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


def check_front_requests(model_config: Any) -> None:
    """Have this process's engine check what a front sends."""
    limits = {"context_tokens": model_config.max_model_len}
    limits["vocabulary"] = model_config.get_vocab_size()
    take, tell = EngineCore.preprocess_add_request, EngineCoreProc._handle_request_preproc_error

    def checked(self: EngineCore, request: EngineCoreRequest) -> Any:
        if request.client_index == FRONT_CLIENT:
            refuse_front_request(request, **limits)
        return take(self, request)

    def told(self: EngineCoreProc, request: EngineCoreRequest) -> None:
        error = sys.exception()
        if not isinstance(error, VLLMValidationError):
            tell(self, request)
            return
        logger.warning("request %s of the front is refused: %s", request.request_id, error)
        self._send_error_outputs_to_client([request.request_id], request.client_index)

    EngineCore.preprocess_add_request = checked
    EngineCoreProc._handle_request_preproc_error = told
