"""Parts of Numba that are otherwise here: how a function that others call is compiled, how named
tuples and arrays are returned to Python, and which files are read.

Numba optimizes each function with all that it calls, which for one eight calls deep is eight times
the same: here those that others call are only lowered, and what is kept is optimized as a whole.

Numba unpickles the class of what it returns, and calls a named tuple's, which runs Python, and with
it the handlers of signals. What one raises there (Ctrl-C's KeyboardInterrupt) Numba does not see,
and crashes. Here classes are kept, and a tuple is made by `tuple.__new__`: that runs no Python.

They are Numba's inner classes, of the version that the constraints pin.
"""

# mypy: no-disallow-untyped-calls
# Numba's methods have no types.

from collections.abc import Callable
from functools import partial
from typing import Any, Self

from numba.core import types
from numba.core.boxing import box_array, box_tuple
from numba.core.caching import CompileResultCacheImpl, FunctionCache, InTreeCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.pythonapi import _boxers as boxers


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


def _kept(into: Any, constant: object) -> object:
    """Code that borrows a constant of Python from the function's environment."""
    return into.env_manager.read_const(into.env_manager.add_const(constant))


def _array(of: types.Array, value: object, into: Any) -> object:
    """Numba's code that makes an array for Python of a compiled one, its class kept."""
    api = into.pyapi
    api.serialize_object, api.unserialize = lambda kind: kind, partial(_kept, into)
    try:
        return box_array(of, value, into)
    finally:
        del api.serialize_object, api.unserialize


def _named_tuple(of: types.NamedTuple, value: object, into: Any) -> object:
    """Code that makes a named tuple for Python of a compiled one."""
    api = into.pyapi
    make, made_of = _kept(into, tuple.__new__), _kept(into, of.instance_class)
    plain = box_tuple(of, value, into)
    arguments = api.tuple_pack([made_of, plain])
    made = api.call(make, arguments)
    api.decref(arguments)
    api.decref(plain)
    return made


for _kind in (types.NamedTuple, types.NamedUniTuple):
    boxers.functions[_kind] = _named_tuple
boxers.functions[types.Array] = _array


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
