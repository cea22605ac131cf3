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


def name_weights(
    outputs: Iterable[EngineCoreOutput], name: str, places: Mapping[str, RequestPlace]
) -> None:
    """Put the names of their request's weights on each output of a rank with weights `name`.

    Every output has them, as any may be the last for the API process.
    """
    for output in outputs:
        place = places.get(output.request_id)
        if place is None:
            continue
        if output.new_token_ids and place.weights[-1:] != [name]:
            place.weights = [*place.weights, name]
        output.kv_transfer_params = {
            **(output.kv_transfer_params or {}),
            WEIGHTS_KEY: place.weights,
        }
