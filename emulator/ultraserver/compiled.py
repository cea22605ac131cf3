"""Functions that Numba compiles to machine code, when they are first called, and keeps on disk.

Numba takes a function from the disk again while its own file is as it was and the variables around
it are, whatever became of the functions that it calls: so one that is kept is made inside another,
to which `sources_of` all of these is a variable.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar
from zlib import crc32

from numba import njit

_P = ParamSpec("_P")
_R = TypeVar("_R")


def kept(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, compiled for calls from Python and kept on disk with all that it calls."""
    made: Callable[_P, _R] = njit(cache=True, error_model="numpy")(function)
    return made


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, compiled for calls from compiled ones alone, which takes half as long."""
    jit: Any = njit  # its types know no options of wrappers
    made: Callable[_P, _R] = jit(
        error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return made


def sources_of(*modules: ModuleType) -> int:
    """A checksum of the modules' text."""
    checksum = 0
    for module in modules:
        assert module.__file__ is not None, module
        checksum = crc32(Path(module.__file__).read_bytes(), checksum)
    return checksum
