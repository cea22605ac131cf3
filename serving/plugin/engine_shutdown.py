"""The steps of ending vLLM's engine.

vLLM refuses requests after its engine's end, but does not fail all waiting ones; this does.
"""

import asyncio
from functools import partial
from typing import Any, Final

from vllm.v1.engine.exceptions import EngineDeadError

LEAVE_SIGNALS: Final = "leave_signals"
HEED_SIGNALS: Final = "heed_signals"
"""Methods of the executor, for `collective_rpc`; see `engine_signals`."""

_CALL_WALL_S: Final = 2.0
"""Longest wait for an engine to heed signals; one in a long step does not answer, and is killed."""


async def leave_signals(engine: Any) -> None:
    """Leave SIGTERM and SIGINT to this process."""
    await engine.collective_rpc(LEAVE_SIGNALS)


async def abort_requests(engine: Any) -> int:
    """End all requests with the finish reason "abort"; returns how many."""
    waiting = list(engine.output_processor.request_states)
    await engine.abort(waiting, internal=True)
    return len(waiting)


def fail_requests(engine: Any) -> int:
    """Raise EngineDeadError in all waiters of a dead engine; returns how many."""
    waiting = engine.output_processor.request_states.values()
    for state in waiting:
        if state.queue is not None:
            state.queue.put(EngineDeadError())
    return len(waiting)


def note_engine_gone(engine: Any) -> None:
    """Have `engine`, the client of one that another process started, know that it has ended."""
    engine.engine_core.resources.engine_dead = True


async def end_engine(engine: Any, wall_s: float) -> None:
    """Wait up to `wall_s` for the engine's end, then kill it; nothing if it has ended."""
    if not engine.errored:
        try:
            await asyncio.wait_for(engine.collective_rpc(HEED_SIGNALS), _CALL_WALL_S)
        except Exception:  # noqa: BLE001  it is gone, or does not answer; it is killed below
            wall_s = 0.0
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, partial(engine.shutdown, timeout=wall_s))
