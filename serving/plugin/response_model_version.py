"""Says in each response which weights made it: OpenAI's `system_fingerprint`, per request.

vLLM makes one fingerprint at its start, and its serving objects put it into responses. Here the
engine's outputs bring the names of the weights that made their request's tokens; while an HTTP
request is answered they are gathered, and the fingerprint that is then read has them behind vLLM's
own words: `vllm-0.32.0-...-v3-1a2b3c4d`. A text that two versions wrote, because its rank was lost
on the way, names both.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

from vllm.entrypoints.generate.base.serving import GenerateBaseServing
from vllm.entrypoints.serve.utils import fingerprint

from serving.plugin.request_place import WEIGHTS_KEY

_FIELD = "system_fingerprint"
_gathered: ContextVar[list[str] | None] = ContextVar(
    "ultraserve_response_model_version", default=None
)


def begin_response() -> None:
    """Gather, from here on in this task and those that it starts, for one HTTP response."""
    _gathered.set([])


class _Fingerprint:
    """The attribute of vLLM's serving objects: what vLLM sets, and the weights of the response.

    A literal that the user chose (`--fingerprint-mode custom`) stays as it is, and so does none.
    """

    def __set__(self, owner: Any, value: str | None) -> None:
        owner.__dict__[_FIELD] = value

    def __get__(self, owner: Any, kind: type) -> str | None:
        said: str | None = owner.__dict__.get(_FIELD)
        names = _gathered.get()
        if said is None or not names or fingerprint._DEFAULT_MODE == "custom":
            return said
        return f"{said}-{'+'.join(names)}"


def name_weights_in_responses(engine: Any) -> None:
    """Let responses of this process name the weights that `engine`, its AsyncLLM, says.

    Changes vLLM's class of serving objects, and `engine.generate`; again it changes nothing.
    """
    if not isinstance(vars(GenerateBaseServing).get(_FIELD), _Fingerprint):
        setattr(GenerateBaseServing, _FIELD, _Fingerprint())
    if not hasattr(engine.generate, "tells_weights"):
        engine.generate = _telling(engine.generate)


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
    """Gather the names that an output of the engine brings, and take them off it."""
    params = output.kv_transfer_params
    if not params or WEIGHTS_KEY not in params:
        return
    output.kv_transfer_params = None
    gathered = _gathered.get()
    if gathered is not None:
        gathered.extend(name for name in params[WEIGHTS_KEY] if name not in gathered)
