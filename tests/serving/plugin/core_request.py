"""A request as vLLM's front end sends it to the engine's process."""

from collections.abc import Sequence
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest


def core_request(
    name: str, prompt: Sequence[int] | None, params: SamplingParams | None, **changed: Any
) -> EngineCoreRequest:
    """Of plain text, at the time 0, but for fields that are `changed`."""
    fields: dict[str, Any] = {
        "request_id": name,
        "external_req_id": name,
        "prompt_token_ids": None if prompt is None else list(prompt),
        "mm_features": None,
        "sampling_params": params,
        "pooling_params": None,
        "arrival_time": 0.0,
        "lora_request": None,
        "cache_salt": None,
        "data_parallel_rank": None,
    }
    return EngineCoreRequest(**(fields | changed))
