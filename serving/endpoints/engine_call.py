"""One call to the engine from the API's process: a line of JSON there, a line back."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

from serving.endpoints.control_messages import ENGINE_GONE
from serving.metrics import control_call
from serving.metrics.control_call import ControlReply, ControlRequest

_ENGINE_CHECK_S: Final = 0.5
"""How often a waiting call looks whether the engine is still there: vLLM leaves calls that an
engine died on without an answer."""


class Engine(Protocol):
    """What the service needs of vLLM's AsyncLLM."""

    @property
    def errored(self) -> bool:
        """The engine's process is gone, or cannot go on."""

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of the executor; one answer per executor."""


class EngineGone(Exception):
    """The engine ended before it answered; indefinite: the call may have been applied."""

    def __init__(self) -> None:
        super().__init__(ENGINE_GONE)


class EngineFailed(Exception):
    """The engine answered a call with an error of its own, in its words."""


async def ask(engine: Engine, request: ControlRequest) -> ControlReply:
    """Send `request` to the engine and wait for its reply, however long its step takes.

    Raises:
        EngineGone: it ended before it answered.
        EngineFailed: its answer is an error that is no refusal.
    """
    if engine.errored:
        raise EngineGone
    call = asyncio.ensure_future(
        engine.collective_rpc(control_call.METHOD, args=(control_call.to_json(request),))
    )
    try:
        while not call.done():
            await asyncio.wait({call}, timeout=_ENGINE_CHECK_S)
            if engine.errored and not call.done():
                raise EngineGone
    finally:
        call.cancel()  # when the client has gone, nobody waits for it
    failure = call.exception()
    if failure is not None and engine.errored:
        raise EngineGone from failure
    if failure is not None:
        raise EngineFailed(" ".join(str(failure).split())) from failure
    (text,) = call.result()
    return control_call.reply_from_json(text)
