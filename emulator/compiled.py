"""Functions that Numba compiles to machine code, when they are first called, and keeps on disk.

Numba takes a function from the disk again while its own file is as it was, whatever became of the
functions that it calls; and a file that names a type which is gone cannot be read at all. So the
name of one that is kept, and with it that of its file, has a checksum of all that it is made of.
"""

import fcntl
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, ParamSpec, TypeVar
from zlib import crc32

from numba import njit, types

from emulator import numba_parts
from emulator.numba_parts import InstalledFirstCache, PartCompiler


@contextmanager
def _without_blas() -> Iterator[None]:
    """As if SciPy had none: Numba asks, for 0.2 s and 16 MB, and no kernel multiplies by it."""
    name = "scipy.linalg"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails
    try:
        yield
    finally:
        del sys.modules[name]


with _without_blas():
    from numba.np import arraymath as _  # noqa: F401  what else the first compiled call imports

_P = ParamSpec("_P")
_R = TypeVar("_R")

_compiling: Final = threading.Lock()
_of_given_types: Final[list[tuple[Any, tuple[types.Type, ...]]]] = []

_OWN_SOURCES: Final = (__file__, numba_parts.__file__)
kept_sources: Final = {Path(each) for each in _OWN_SOURCES}
"""Files of which all is made that is kept, of the modules that are imported."""


def kept(sources: int, *arguments: types.Type) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Compile a function for calls from Python, and keep it on disk with all that it calls.

    `sources` is the checksum of the modules that define what it calls, and its arguments' types. Of
    processes that need it at the same time one compiles, and the others wait to read. Other threads
    run while it runs. With `arguments` it is compiled for those types alone, which also takes what
    converts to them, as an array that may be written to one that may not.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        kept_sources.add(Path(function.__code__.co_filename))
        function.__qualname__ += f".{sources:08x}"
        made: Any = njit(nogil=True, error_model="numpy")(function)
        made._cache = InstalledFirstCache(function)
        lock = Path(made.stats.cache_path) / f"{function.__qualname__}.lock"
        compile_or_read = made.compile

        def alone(signature: object) -> object:
            with _held(lock), _without_gc():
                return compile_or_read(signature)

        made.compile = alone
        if arguments:
            made._compile_for_args = partial(_compile_for, made, arguments)
            _of_given_types.append((made, arguments))
        kept_one: Callable[_P, _R] = made
        return kept_one

    return decorate


def given(dtype: types.Type, dimensions: int) -> types.Array:
    """The type of an array, row by row in memory, that is read alone."""
    return types.Array(dtype, dimensions, "C", readonly=True)


def _compile_for(made: Any, arguments: tuple[types.Type, ...], *values: object) -> object:
    """What Numba calls where it has no machine code for the types of `values`."""
    for at, (value, wanted) in enumerate(zip(values, arguments, strict=True)):
        if made.typingctx.can_convert(made.typeof_pyval(value), wanted) is None:
            kind = made.typeof_pyval(value)
            raise TypeError(f"{made.py_func.__name__}: argument {at} is {kind} and not {wanted}")
    return _compile_once(made, arguments)


def _compile_once(made: Any, arguments: tuple[types.Type, ...]) -> object:
    """Machine code for `arguments`, the only one; threads that come meanwhile have the same."""
    with _compiling:
        for code in made.overloads.values():
            return code.entry_point
        entry = made.compile(arguments)
        made.disable_compile()
        return entry


def load_kept() -> None:
    """Read, or compile and keep, all functions of the modules that are imported whose arguments'
    types are given. A process that does so before it forks shares them with its children.
    """
    for made, arguments in _of_given_types:
        _compile_once(made, arguments)


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, compiled for calls from compiled ones alone, which takes half as long.

    It makes no arrays, nor calls what returns new ones, so that it counts none: to count those
    that it is given is most of what a short function takes.
    """
    made: Callable[_P, _R] = _inner(_nrt=False)(function)
    return made


def inlined(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`compiled` into its callers: for one that is called in one or two places, many times.

    A call hands over each array of each tuple in eight numbers, by hundreds.
    """
    made: Callable[_P, _R] = _inner(_nrt=False, forceinline=True)(function)
    return made


def allocating(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`compiled`, for one that makes arrays."""
    made: Callable[_P, _R] = _inner(_nrt=True)(function)
    return made


def _inner(**options: bool) -> Any:
    jit: Any = njit  # its types know no options of wrappers
    return jit(
        error_model="numpy",
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        pipeline_class=PartCompiler,
        **options,
    )


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Numba itself locks no file: two that write lose what one of them has compiled."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _without_gc() -> Iterator[None]:
    """Numba makes millions of objects that stay: to look for garbage among them takes an eighth."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def sources_of(*modules: ModuleType) -> int:
    """A checksum of the modules' text, and of how it is compiled."""
    checksum = 0
    for file in (*_OWN_SOURCES, *(module.__file__ for module in modules)):
        assert file is not None, modules
        kept_sources.add(Path(file))
        checksum = crc32(Path(file).read_bytes(), checksum)
    return checksum
