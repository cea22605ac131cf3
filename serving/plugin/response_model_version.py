"""Adds the model version to each response (`system_fingerprint`).

vLLM makes one fingerprint at its start. Names of weights in the engine's outputs are gathered
during an HTTP response and appended to it: `vllm-0.32.0-...-v3-1a2b3c4d`. A text whose rank was
lost may have two.

The engine says a request's names when they change. They are kept on vLLM's state of the request and
put on the outputs that follow, of which vLLM joins some and takes the last one's.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

from vllm.entrypoints.generate.base.serving import GenerateBaseServing
from vllm.entrypoints.serve.utils import fingerprint

from serving.engine.request_trace import TRACE_KEY
from serving.plugin.request_place import WEIGHTS_KEY

_FIELD = "system_fingerprint"
_KEPT = "ultraserve_params"
"""Attribute of vLLM's state of a request: the parameters of its last output that had any."""

_gathered: ContextVar[list[str] | None] = ContextVar(
    "ultraserve_response_model_version", default=None
)


def begin_response() -> None:
    """Gather names for one HTTP response in this task and those that it starts."""
    _gathered.set([])


class _Fingerprint:
    """The fingerprint of vLLM with the response's weights; a user's literal, or none, stays."""

    def __set__(self, owner: Any, value: str | None) -> None:
        owner.__dict__[_FIELD] = value

    def __get__(self, owner: Any, kind: type) -> str | None:
        said: str | None = owner.__dict__.get(_FIELD)
        names = _gathered.get()
        if said is None or not names or fingerprint._DEFAULT_MODE == "custom":
            return said
        return f"{said}-{'+'.join(names)}"


def name_weights_in_responses(engine: Any) -> None:
    """Patch vLLM's serving class and the engine's methods to name weights; idempotent."""
    if not isinstance(vars(GenerateBaseServing).get(_FIELD), _Fingerprint):
        setattr(GenerateBaseServing, _FIELD, _Fingerprint())
    if not hasattr(engine.generate, "tells_weights"):
        engine.generate = _telling(engine.generate)
        _keep_names(engine.output_processor)


def _keep_names(processor: Any) -> None:
    """Have each output of a request say what the last one that said anything did."""
    process = processor.process_outputs

    def process_outputs(outputs: list[Any], *args: Any, **named: Any) -> Any:
        held = processor.request_states
        for output in outputs:
            if (state := held.get(output.request_id)) is None:
                continue
            if output.kv_transfer_params is not None:
                setattr(state, _KEPT, output.kv_transfer_params)
            else:
                output.kv_transfer_params = getattr(state, _KEPT, None)
        return process(outputs, *args, **named)

    processor.process_outputs = process_outputs


def _telling(
    generate: Callable[..., AsyncGenerator[Any, None]],
) -> Callable[..., AsyncGenerator[Any, None]]:
    async def told(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        async with aclosing(generate(*args, **kwargs)) as outputs:
            async for output in outputs:
                take_names(output)
                yield output

    told.tells_weights = True  # type: ignore[attr-defined]
    return told


def take_names(output: Any) -> None:
    """Move the names from an engine output to the response."""
    params = output.kv_transfer_params
    if not params or WEIGHTS_KEY not in params:
        return
    others = {name: value for name, value in params.items() if name not in (WEIGHTS_KEY, TRACE_KEY)}
    output.kv_transfer_params = others or None
    gathered = _gathered.get()
    if gathered is not None:
        gathered.extend(name for name in params[WEIGHTS_KEY] if name not in gathered)
