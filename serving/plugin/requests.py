"""Translates a request's sampling parameters to the chips', or refuses the request.

Refusals are exceptions that vLLM's HTTP app and gRPC service map to a status.
"""

import hashlib
from http import HTTPStatus
from typing import Any

from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.sampling_params import SamplingParams

from emulator.specs.sampling import SamplingSpec
from serving.policy.admission.refusal import Refused

_NOT_COMPUTED = {
    "prompt_logprob_token_ids": "scores of chosen prompt tokens",
    "prompt_logprob_start": "prompt_logprobs from a position on",
    "thinking_token_budget": "a budget for thinking tokens",
    "trace_decode_token_ids": "replayed decode tokens",
}


class NotComputed(VLLMValidationError, ValueError):
    """Not computed on emulated chips; vLLM answers 400 (to a bare ValueError from here, 500)."""

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        VLLMValidationError.__init__(self, message, parameter=parameter)


def refuse_request(params: Any) -> None:
    """Raise NotComputed where it applies."""
    if not isinstance(params, SamplingParams):
        raise NotComputed(f"{type(params).__name__}: only text generation is computed here")
    for name, meaning in _NOT_COMPUTED.items():
        if getattr(params, name) is not None:
            raise NotComputed(f"{name}: not computed on this platform ({meaning})", parameter=name)
    if params.watermarking:
        raise NotComputed("watermarking: not computed on this platform", parameter="watermarking")


def sampling_spec(params: SamplingParams, request_id: str, engine_seed: int) -> SamplingSpec:
    """Translate `params`; without a seed, one is derived from the id and the engine's seed."""
    seed = params.seed
    if seed is None:
        digest = hashlib.blake2b(f"{engine_seed}:{request_id}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little") >> 1
    bad_words = params.bad_words_token_ids or []
    return SamplingSpec(
        temperature=params.temperature,
        top_k=max(0, params.top_k),
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=tuple(sorted((params.logit_bias or {}).items())),
        seed=seed,
        min_tokens=params.min_tokens,
        stop_token_ids=tuple(sorted(params.all_stop_token_ids)),
        bad_words=tuple(tuple(word) for word in bad_words),
        allowed_token_ids=(
            tuple(params.allowed_token_ids) if params.allowed_token_ids is not None else None
        ),
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        logprob_token_ids=(
            tuple(params.logprob_token_ids) if params.logprob_token_ids is not None else None
        ),
        uses_grammar=params.structured_outputs is not None,
    )


class RefusedRequest(GracefulHTTPError, Refused):
    """`refused` in vLLM's type: 503 for the server's reasons, 429 for load."""

    def __init__(self, refused: Refused) -> None:
        of_server = refused.reason.is_of_server
        status = HTTPStatus.SERVICE_UNAVAILABLE if of_server else HTTPStatus.TOO_MANY_REQUESTS
        # vLLM's own __init__ would call ours, with what it knows.
        Refused.__init__(
            self,
            refused.reason,
            str(refused),
            retry_after_s=refused.retry_after_s,
            rate=refused.rate,
        )
        self.message, self.http_status = str(refused), status


class GrammarTooHeavy(VLLMValidationError, ValueError):
    """A structured output's grammar above the limit; vLLM answers 400."""

    def __init__(self, weight: int, weight_max: int) -> None:
        words = (
            "structured output: expected a schema, choice, regex or grammar of a weight of at most "
            f"{weight_max:,} (about its letters, with patterns and alternatives squared), "
            f"not {weight:,}"
        )
        VLLMValidationError.__init__(self, words, parameter="structured_outputs")


class TooManyPromptLogprobs(VLLMValidationError, ValueError):
    """Prompt logprobs above the limit; vLLM answers 400."""

    def __init__(self, wanted: int, wanted_max: int) -> None:
        words = (
            "prompt_logprobs: expected at most "
            f"{wanted_max:,} logprobs of a request's prompts (tokens times prompt_logprobs + 1), "
            f"not {wanted:,}"
        )
        VLLMValidationError.__init__(self, words, parameter="prompt_logprobs")
