"""Parts of Numba that are otherwise here: how a function that others call is compiled, and which
files are read.

Numba optimizes each function with all that it calls, which for one eight calls deep is eight times
the same: here those that others call are only lowered, and what is kept is optimized as a whole.
They are Numba's inner classes, of the version that the constraints pin.
"""

# mypy: no-disallow-untyped-calls
# Numba's methods have no types.

from collections.abc import Callable
from typing import Self

from numba.core.caching import CompileResultCacheImpl, FunctionCache, InTreeCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


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


class PartCompiler(Compiler):
    """Numba's own, with another library."""

    def compile_extra(self, func: Callable[..., object]) -> object:
        """Compile a function, as a part of others."""
        codegen = self.state.targetctx.codegen()
        self.state.library = _PartLibrary(codegen, func.__qualname__)
        return super().compile_extra(func)


class _BesideCode(InTreeCacheLocator):
    def ensure_cache_path(self) -> None:
        """It is read, also by those who may not write there."""


class _InstalledFiles(CompileResultCacheImpl):
    _locator_classes = [_BesideCode]  # noqa: RUF012  as Numba has it


class _InstalledCache(FunctionCache):
    _impl_class = _InstalledFiles


class InstalledFirstCache(FunctionCache):
    """Numba's own, behind what an installation has kept beside the code."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        self._installed = _InstalledCache(function)

    def load_overload(self, signature: object, target: object) -> object:
        """What was compiled for the signature; None if nothing was."""
        there = self._installed.load_overload(signature, target)
        return super().load_overload(signature, target) if there is None else there
