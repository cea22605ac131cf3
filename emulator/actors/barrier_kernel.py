"""Counters in shared memory at which processes wait for each other, compiled.

A word counts arrivals in its lower 31 bits. Who completes a count wakes all that sleep, so that
each is woken once; nobody owns a word, and one that dies in between holds nothing. The top bit
says that the step is broken off: nobody arrives from then on, so that a count is complete for all
or for none. Sleeping is Linux's futex(2); an arrival releases what was written before it, and a
wait that ends acquires it, on every processor.
"""

import platform
import sys
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from emulator.ultraserver.compiled import compiled

BROKEN_BIT: Final = 1 << 31

DONE: Final = 0
BROKEN: Final = 1
LATE: Final = 2

_FUTEX_NUMBERS: Final = {"x86_64": 202, "aarch64": 98}
_FUTEX: Final = _FUTEX_NUMBERS.get(platform.machine(), -1)
_WAIT, _WAKE, _EVERYBODY = 0, 1, (1 << 31) - 1

_WORD: Final = ir.IntType(32)
_LONG: Final = ir.IntType(64)


def can_wait() -> bool:
    """Whether this system has what processes wait with."""
    return sys.platform == "linux" and _FUTEX >= 0


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _WORD.as_pointer())


def _futex(builder: Any, address: Any, operation: int, value: Any, limit: Any) -> Any:
    """Call futex(2) through the C library, which every process has: code on disk may name it."""
    name = ir.FunctionType(_LONG, [_LONG] * 5)
    call = cgutils.get_or_insert_function(builder.module, name, "syscall")
    number, what = ir.Constant(_LONG, _FUTEX), ir.Constant(_LONG, operation)
    return builder.call(call, [number, address, what, value, limit])


@intrinsic
def _load(_: Any, address: Any) -> Any:
    """The word at `address`, and what was written before it came to be."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = _pointer(builder, arguments[0])
        return builder.load_atomic(word, "acquire", 4, typ=_WORD)

    return types.uint32(types.uintp), generate


@intrinsic
def _replace(_: Any, address: Any, before: Any, after: Any) -> Any:
    """Write `after` if the word is `before`; returns what it was."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place, old, new = arguments
        done = builder.cmpxchg(_pointer(builder, place), old, new, "acq_rel", "acquire")
        return builder.extract_value(done, 0)

    return types.uint32(types.uintp, types.uint32, types.uint32), generate


@intrinsic
def _sleep(_: Any, address: Any, value: Any, limit_ns: Any) -> Any:
    """Sleep while the word is `value`, until woken, interrupted, or for `limit_ns` below 1 s."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place, seen, nanoseconds = arguments
        zero = ir.Constant(_LONG, 0)
        limit = cgutils.alloca_once_value(builder, cgutils.pack_array(builder, [zero, zero]))
        builder.store(cgutils.pack_array(builder, [zero, nanoseconds]), limit)
        seen = builder.zext(seen, _LONG)
        return _futex(builder, place, _WAIT, seen, builder.ptrtoint(limit, _LONG))

    return types.int64(types.uintp, types.uint32, types.int64), generate


@intrinsic
def _wake(_: Any, address: Any) -> Any:
    """Wake all that sleep at the word."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        everybody = ir.Constant(_LONG, _EVERYBODY)
        return _futex(builder, arguments[0], _WAKE, everybody, ir.Constant(_LONG, 0))

    return types.int64(types.uintp), generate


@intrinsic
def _yield_processor(_: Any) -> Any:
    """Let another runnable process of this processor run."""

    def generate(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        kind = ir.FunctionType(_WORD, [])
        call = cgutils.get_or_insert_function(builder.module, kind, "sched_yield")
        return builder.call(call, [])

    return types.int32(), generate


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
def wait(word: int, target: int, turns: int, limit_ns: int) -> int:
    """Wait until `target` have arrived at the address `word`: DONE, BROKEN, or LATE.

    Gives way to others for `turns`, then sleeps.
    """
    while True:
        value = _load(word)
        if (value & ~BROKEN_BIT) >= target:
            return DONE
        if value & BROKEN_BIT:
            return BROKEN
        if turns > 0:
            turns -= 1
            _yield_processor()
        elif _sleep(word, value, limit_ns) < 0 and _load(word) == value:
            return LATE


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
