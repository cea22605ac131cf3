"""Functions that Numba compiles to machine code, when they are first called, and keeps on disk.

A kept function is compiled again when its own file changes, and not when a compiled function of
another file that it calls does: one that is called from Python has all that it calls in its file.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from numba import njit

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, compiled for calls from Python and kept on disk with all that it calls."""
    made: Callable[_P, _R] = njit(cache=True, error_model="numpy")(function)
    return made


def compiled_part(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, compiled for calls from compiled ones alone, which takes half as long."""
    jit: Any = njit  # its types know no options of wrappers
    made: Callable[_P, _R] = jit(
        error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return made
