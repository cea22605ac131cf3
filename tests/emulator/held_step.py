"""Holds the chips of a live fleet in the middle of a step, as one more that takes part in it."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from numba import njit

from emulator.actors.barrier_kernel import BROKEN_BIT, arrive
from emulator.actors.exchange_segment import ANSWERED, DISPATCHED, LAYERS, MEMBERS, SOURCES, Areas
from emulator.actors.step_exchange import Begin, SharedExchange
from emulator.fleet import Fleet

_LOOK_EVERY_S = 0.0002


@njit(nogil=True)
def _arrive(address: int, target: int) -> bool:
    arrived: bool = arrive(address, target)
    return arrived


@contextmanager
def _held(
    fleet: Fleet, word: int, part: int, layer: int, happen: Callable[[], None], *, goes_on: bool
) -> Iterator[None]:
    """Let `happen` when all chips wait at `word` in `layer` of the next step."""
    assert isinstance(fleet._exchange, SharedExchange)
    exchange: Any = fleet._exchange
    attempt = exchange.attempt
    threads: list[threading.Thread] = []

    def hold(areas: Areas) -> None:
        for passed in range(layer + 1):
            target = int(areas.step[part]) * (passed + 1)
            while int(areas.words[word]) < target - 1:
                time.sleep(_LOOK_EVERY_S)
            if int(areas.words[word]) & BROKEN_BIT:
                return
            if passed == layer:
                happen()
            if passed < layer or goes_on:
                _arrive(areas.words.ctypes.data + 4 * word, target)

    def held(begin: Begin, live: Collection[int]) -> Any:
        made = attempt(begin, live)
        areas = exchange._segment.areas
        if not threads and areas.step[LAYERS]:
            areas.step[part] += 1
            threads.append(threading.Thread(target=hold, args=(areas,)))
            threads[0].start()
        return made

    exchange.attempt = held
    try:
        yield
    finally:
        del exchange.attempt
        for thread in threads:
            thread.join()


def when_all_dispatched(fleet: Fleet, layer: int, happen: Callable[[], None]) -> Any:
    """Let `happen` when all tokens of `layer` of the next step are on their way; nobody goes on."""
    return _held(fleet, DISPATCHED, SOURCES, layer, happen, goes_on=False)


def when_all_answered(fleet: Fleet, layer: int, happen: Callable[[], None]) -> Any:
    """Let `happen` when all experts of `layer` of the next step are computed; then all go on."""
    return _held(fleet, ANSWERED, MEMBERS, layer, happen, goes_on=True)


@contextmanager
def held_before_experts(fleet: Fleet) -> Iterator[None]:
    """Keep all chips from the experts of the next step's first layer."""
    exchange: Any = fleet._exchange
    attempt = exchange.attempt

    def held(begin: Begin, live: Collection[int]) -> Any:
        made = attempt(begin, live)
        exchange._segment.areas.step[SOURCES] += 1
        del exchange.attempt
        return made

    exchange.attempt = held
    yield
