"""Ctrl-C: the first ends the sending, a second the program."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT or SIGTERM; a second raises KeyboardInterrupt in the loop.

    Does nothing outside the main thread, where signals cannot be caught.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    caught = 0

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def on_signal() -> None:
        nonlocal caught
        caught += 1
        if caught > 1:
            restore()  # now: the caller's frame ends only when the loop is being closed
            raise KeyboardInterrupt
        stop()

    try:
        for number in SIGNALS:
            loop.add_signal_handler(number, on_signal)
    except (ValueError, RuntimeError):
        yield
        return
    try:
        yield
    finally:
        restore()
