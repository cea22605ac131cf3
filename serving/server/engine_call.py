"""One call to the engine from the API's process: a line of JSON there and back."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Final, Protocol, TypeVar

from serving.wire import control_call
from serving.wire.control_call import ControlReply, ControlRequest

T = TypeVar("T")

ENGINE_GONE: Final = "the engine is gone; a call that it did not answer may have been applied"
"""UNAVAILABLE from the server itself, not the network."""

_ENGINE_CHECK_S: Final = 0.5
"""vLLM leaves a dead engine's calls unanswered."""


class Engine(Protocol):
    """The control service's part of vLLM's AsyncLLM."""

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
        """Call a method; one answer per executor."""


class ServedEngine(Engine, Protocol):
    """The control service's full part of vLLM's AsyncLLM."""

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Release weights and KV from HBM."""

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        """Restore them."""

    async def is_sleeping(self) -> bool:
        """Whether a part is still released."""

    async def pause_generation(self, *, mode: str = "abort", clear_cache: bool = True) -> None:
        """Hold requests back."""

    async def resume_generation(self) -> None:
        """Let them go on."""

    async def is_paused(self) -> bool:
        """Whether they are held back."""

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Clear prefixes; False when requests hold some."""


class EngineGone(Exception):
    """The engine ended before it answered; indefinite.

    `definite`: it ended before the call, and nothing has changed.
    """

    def __init__(self, *, definite: bool = False) -> None:
        super().__init__(ENGINE_GONE)
        self.definite = definite


class EngineFailed(Exception):
    """The engine's error, in its words."""


async def ask(engine: Engine, request: ControlRequest) -> ControlReply:
    """Send `request` to the engine and wait, however long its step takes. Raises EngineGone when it
    ends first; EngineFailed for an error that is no refusal.
    """
    call = engine.collective_rpc(control_call.METHOD, args=(control_call.to_json(request),))
    (text,) = await while_there(engine, call)
    return control_call.reply_from_json(text)


async def while_there(engine: Engine, call: Awaitable[T]) -> T:
    """The result of `call` while the engine runs. Raises EngineGone when it ends first,
    EngineFailed when the call raises.
    """
    if engine.errored:
        if asyncio.iscoroutine(call):
            call.close()
        raise EngineGone(definite=True)
    task = asyncio.ensure_future(call)
    try:
        while not task.done():
            if engine.errored:
                raise EngineGone
            await asyncio.wait({task}, timeout=_ENGINE_CHECK_S)
    finally:
        task.cancel()  # when the client has gone, nobody waits for it
    failure = task.exception()
    if failure is not None and engine.errored:
        raise EngineGone from failure
    if failure is not None:
        raise EngineFailed(" ".join(str(failure).split())) from failure
    return task.result()
