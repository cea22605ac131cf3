"""The event loop of a load."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


def run_to_end(main: Coroutine[Any, Any, Value]) -> Value:
    """Run `main` in its own event loop, uvloop's if installed, and return its value.

    uvloop takes less CPU for the same load (DECISIONS.md has the figures); everything works without
    it. Ctrl-C is a KeyboardInterrupt once `main` was cancelled.
    """
    try:
        import uvloop  # noqa: PLC0415 - may be missing
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
