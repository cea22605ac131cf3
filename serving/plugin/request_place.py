"""Place of a request in the lockstep scheduler, and the weights of its tokens."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from vllm.v1.engine import EngineCoreOutput

from serving.engine.request_trace import RequestTrace

WEIGHTS_KEY: Final = "ultraserve_weights"
"""Key in an output's `kv_transfer_params`: names of the weights that made its request's tokens.
vLLM passes these to the API process; they say nothing of KV."""

NOWHERE: Final = -1
"""Rank of a request that waits for one."""


@dataclass(slots=True)
class RequestPlace:
    """`arrival` numbers requests by arrival; `stamped_events` counts events with emulated stamps;
    `weights` name those of its tokens, in order; `has_stop_strings`: the API process may end it;
    `trace` is set once computed, if traced; `left` is a lost rank, until it has another or ends.
    """

    rank: int
    arrival: int
    stamped_events: int = 0
    weights: list[str] = field(default_factory=list)
    has_stop_strings: bool = False
    trace: RequestTrace | None = None
    left: int | None = None


def is_plain(output: EngineCoreOutput) -> bool:
    """Whether an output is no more than tokens in the middle of a request."""
    return output.finish_reason is None and output.events is None and output.prefill_stats is None


def name_weights(
    outputs: Iterable[EngineCoreOutput], name: str, places: Mapping[str, RequestPlace]
) -> None:
    """Put the names of their request's weights on the outputs of a rank with weights `name`.

    A plain output has none where they are the last output's: the API process remembers them
    (`serving.plugin.response_model_version`), and they cost more than the token.
    """
    for output in outputs:
        place = places.get(output.request_id)
        if place is None:
            continue
        changes = output.new_token_ids and place.weights[-1:] != [name]
        if changes:
            place.weights = [*place.weights, name]
        if changes or not is_plain(output):
            own = output.kv_transfer_params or {}
            output.kv_transfer_params = {**own, WEIGHTS_KEY: place.weights}
