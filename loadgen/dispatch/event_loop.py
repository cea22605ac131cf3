"""Which event loop a load runs on."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


def run_to_end(main: Coroutine[Any, Any, Value]) -> Value:
    """Run `main` in an event loop of its own, uvloop's where it is installed, and return its value.

    uvloop takes less of the processor for the same load (DECISIONS.md has the figures); without
    it everything works the same. Ctrl-C is a KeyboardInterrupt once `main` was cancelled.
    """
    try:
        import uvloop  # noqa: PLC0415 - may be missing
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
