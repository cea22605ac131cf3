"""Counters in shared memory at which processes wait for each other, compiled.

A word counts arrivals in its lower 31 bits. Who completes a count wakes all that sleep, so that
each is woken once; no process owns a word, and one that dies in between holds nothing. The top bit
says that the step is broken off: no arrival counts from then on, so that a count is complete for
all or for none. Sleeping is Linux's futex(2); an arrival releases what was written before it, and a
wait that ends acquires it, on every processor.
"""

# mypy: no-disallow-untyped-calls
# Numba's builders of code have no types.

import platform
import select
import sys
from collections.abc import Callable
from typing import Any, Final

from numba import types
from numba.core.cgutils import int32_t
from numba.extending import intrinsic

from emulator.compiled import compiled

BROKEN_BIT: Final = 1 << 31

DONE: Final = 0
BROKEN: Final = 1
GONE: Final = 2

_FUTEX_NUMBERS: Final = {"x86_64": 202, "aarch64": 98}
_FUTEX: Final = _FUTEX_NUMBERS.get(platform.machine(), -1)
_WAIT, _WAKE, _EVERYBODY, _NOTHING = 0, 1, (1 << 31) - 1, 0


def can_wait() -> bool:
    """Whether this system has what processes wait with."""
    return sys.platform == "linux" and _FUTEX >= 0


# Of the C library, by name: code that is kept on disk has no addresses.
_system_call: Any = types.ExternalFunction("syscall", types.int64(*[types.int64] * 5))
_give_way: Any = types.ExternalFunction("sched_yield", types.int32())
_poll: Any = types.ExternalFunction("poll", types.int32(types.int64, types.int64, types.int32))

_CLOSED: Final = select.POLLRDHUP << 32
"""What is asked of a socket, beside its number in a `pollfd`."""


def closing_of(socket: int) -> int:
    """A `pollfd` that asks whether the other end of `socket` has closed; of -1 it never has."""
    return (socket & 0xFFFF_FFFF) | _CLOSED


def _instruction(function: Callable[..., Any]) -> Any:
    """Numba's `intrinsic`, which returns what has no type."""
    return intrinsic(function)


@_instruction
def _load(_context: Any, _address: Any) -> Any:
    """The word at an address, and what was written before it came to be."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = builder.inttoptr(arguments[0], int32_t.as_pointer())
        return builder.load_atomic(word, "acquire", 4, typ=int32_t)

    return types.uint32(types.uintp), generate


@_instruction
def _replace(_context: Any, _address: Any, _before: Any, _after: Any) -> Any:
    """Write `after` if the word at an address is `before`; returns what it was."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address, before, after = arguments
        word = builder.inttoptr(address, int32_t.as_pointer())
        return builder.extract_value(builder.cmpxchg(word, before, after, "acq_rel", "acquire"), 0)

    return types.uint32(types.uintp, types.uint32, types.uint32), generate


@compiled
def _wake(word: int) -> None:
    _system_call(_FUTEX, word, _WAKE, _EVERYBODY, _NOTHING)


@compiled
def arrive(word: int, target: int) -> bool:
    """Count one more at the address `word`, and wake all where that makes `target`.

    False where the step is broken off.
    """
    value = _load(word)
    while True:
        if value & BROKEN_BIT:
            return False
        before = _replace(word, value, value + 1)
        if before == value:
            break
        value = before
    if value + 1 == target:
        _wake(word)
    return True


@compiled
def wait(word: int, target: int, turns: int, limit: int, hub: int) -> int:
    """Wait until `target` have arrived at the address `word`: DONE, BROKEN, or GONE.

    Gives way to others for `turns`, then sleeps; looks every time that a limit passes whether the
    other end of a socket has closed. `limit` and `hub` are addresses: of the seconds and
    nanoseconds, int64, and of `closing_of` the socket.
    """
    while True:
        value = _load(word)
        if (value & ~BROKEN_BIT) >= target:
            return DONE
        if value & BROKEN_BIT:
            return BROKEN
        if turns > 0:
            turns -= 1
            _give_way()
        elif _system_call(_FUTEX, word, _WAIT, value, limit) < 0 and _poll(hub, 1, 0) > 0:
            return GONE


@compiled
def break_word(word: int) -> None:
    """Set the top bit of the word, and wake all that sleep at it."""
    value = _load(word)
    while True:
        before = _replace(word, value, value | BROKEN_BIT)
        if before == value:
            break
        value = before
    _wake(word)
