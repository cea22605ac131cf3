"""What the fast engine leaves out, refused by name: flags at the start, parameters at a request.

It knows when a token comes, and draws words as `SyntheticTokens` does, without any scores.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from vllm.sampling_params import SamplingParams

from serving.errors import UnsupportedFlag
from serving.plugin.requests import NotComputed
from serving.settings import Settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_INSTEAD: Final = "--engine default has it"

_FLAGS: Final[tuple[tuple[str, Callable[["VllmConfig"], bool]], ...]] = (
    (
        "--otlp-traces-endpoint",
        lambda c: c.observability_config.otlp_traces_endpoint is not None,
    ),
    (
        "--enable-logging-iteration-details",
        lambda c: c.observability_config.enable_logging_iteration_details,
    ),
    ("--kv-cache-metrics", lambda c: c.observability_config.kv_cache_metrics),
    (
        "--no-enable-chunked-prefill",
        lambda c: not c.scheduler_config.enable_chunked_prefill,
    ),
    (
        "--long-prefill-token-threshold-adaptive",
        lambda c: c.scheduler_config.long_prefill_token_threshold_adaptive,
    ),
    (
        "--no-scheduler-reserve-full-isl",
        lambda c: not c.scheduler_config.scheduler_reserve_full_isl,
    ),
    (
        "--kv-events-config",
        lambda c: c.kv_events_config is not None and c.kv_events_config.enable_kv_cache_events,
    ),
    ("--kv-transfer-config", lambda c: c.kv_transfer_config is not None),
    (
        "--prefill-ranks",
        lambda c: bool(Settings.from_additional_config(c.additional_config).prefill_ranks),
    ),
)

_PARAMETERS: Final[tuple[tuple[str, Callable[[SamplingParams], bool]], ...]] = (
    ("logprobs", lambda p: p.logprobs is not None),
    ("prompt_logprobs", lambda p: p.prompt_logprobs is not None),
    ("logprob_token_ids", lambda p: p.logprob_token_ids is not None),
    ("structured_outputs", lambda p: p.structured_outputs is not None),
    ("logit_bias", lambda p: bool(p.logit_bias)),
    ("allowed_token_ids", lambda p: p.allowed_token_ids is not None),
    ("bad_words", lambda p: bool(p.bad_words)),
    ("presence_penalty", lambda p: p.presence_penalty != 0.0),
    ("frequency_penalty", lambda p: p.frequency_penalty != 0.0),
    ("repetition_penalty", lambda p: p.repetition_penalty != 1.0),
    ("repetition_detection", lambda p: p.repetition_detection is not None),
    ("skip_reading_prefix_cache", lambda p: bool(p.skip_reading_prefix_cache)),
    # Until so many tokens, a word that is not the likeliest is drawn in the place of a stop.
    ("min_tokens", lambda p: bool(p.min_tokens and p.stop_token_ids)),
)


def refuse_flags(vllm_config: "VllmConfig") -> None:
    """Raise UnsupportedFlag for the first one that the fast engine lacks."""
    for flag, asked in _FLAGS:
        if asked(vllm_config):
            raise UnsupportedFlag(flag=flag, reason=f"not with --engine fast; {_INSTEAD}")


def refuse_parameters(params: SamplingParams) -> None:
    """Raise NotComputed (HTTP 400) for the first one that the fast engine lacks."""
    for name, asked in _PARAMETERS:
        if asked(params):
            words = f"{name}: not with this server's --engine fast; {_INSTEAD}"
            raise NotComputed(words, parameter=name)
