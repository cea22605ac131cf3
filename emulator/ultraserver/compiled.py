"""Functions that Numba compiles to machine code, when they are first called, and keeps on disk.

Numba takes a function from the disk again while its own file is as it was, whatever became of the
functions that it calls; and a file that names a type which is gone cannot be read at all. So the
name of one that is kept, and with it that of its file, has a checksum of all that it is made of.

Numba optimizes each function with all that it calls, which for one eight calls deep is eight times
the same: here those that others call are only lowered, and what is kept is optimized as a whole.
"""

import fcntl
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, ParamSpec, Self, TypeVar
from zlib import crc32

from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, InTreeCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


@contextmanager
def _without_blas() -> Iterator[None]:
    """As if SciPy had none: Numba asks, for 0.2 s and 16 MB, and no kernel multiplies matrices."""
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

kept_sources: Final = {Path(__file__)}
"""Files of which all is made that is kept, of the modules that are imported."""


class _PartLibrary(JITCodeLibrary):
    """The code of a function that others call: lowered, not optimized, and never run as it is."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        del name
        return 0  # there is none

    @property
    def codegen(self) -> Self:
        """Who is told the address of the function's Python environment, which none needs."""
        return self

    def set_env(self, name: str, env: object) -> None:
        """See `codegen`."""


class _PartCompiler(Compiler):  # type: ignore[misc]  # Numba has no types
    """Numba's own, with another library."""

    def compile_extra(self, func: Callable[..., object]) -> object:
        codegen = self.state.targetctx.codegen()
        self.state.library = _PartLibrary(codegen, func.__qualname__)
        return super().compile_extra(func)


class _BesideCode(InTreeCacheLocator):
    def ensure_cache_path(self) -> None:
        """It is read, also by those who may not write there."""


class _InstalledFiles(CompileResultCacheImpl):
    _locator_classes = (_BesideCode,)


class _InstalledCache(FunctionCache):
    _impl_class = _InstalledFiles


class _Cache(FunctionCache):
    """Numba's own, behind what an installation has kept beside the code."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        self._installed = _InstalledCache(function)

    def load_overload(self, signature: object, target: object) -> object:
        there = self._installed.load_overload(signature, target)
        return super().load_overload(signature, target) if there is None else there


def kept(sources: int) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Compile a function for calls from Python, and keep it on disk with all that it calls.

    `sources` is the checksum of the modules that define what it calls, and its arguments' types. Of
    processes that need it at the same time one compiles, and the others wait to read. Other threads
    run while it runs.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        kept_sources.add(Path(function.__code__.co_filename))
        function.__qualname__ += f".{sources:08x}"
        made: Any = njit(nogil=True, error_model="numpy")(function)
        made._cache = _Cache(function)
        lock = Path(made.stats.cache_path) / f"{function.__qualname__}.lock"
        compile_or_read = made.compile

        def alone(signature: object) -> object:
            with _held(lock), _without_gc():
                return compile_or_read(signature)

        made.compile = alone
        kept_one: Callable[_P, _R] = made
        return kept_one

    return decorate


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, compiled for calls from compiled ones alone, which takes half as long.

    It makes no arrays, nor calls what returns new ones, so that it counts none: to count those
    that it is given is most of what a short function takes.
    """
    made: Callable[_P, _R] = _inner(_nrt=False)(function)
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
        pipeline_class=_PartCompiler,
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
    checksum = crc32(Path(__file__).read_bytes())
    for module in modules:
        assert module.__file__ is not None, module
        kept_sources.add(Path(module.__file__))
        checksum = crc32(Path(module.__file__).read_bytes(), checksum)
    return checksum
