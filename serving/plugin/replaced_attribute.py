"""A function of vLLM that stands back while this program's own is in its place."""

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def replaced(owner: ModuleType | type, name: str, function: Any) -> Iterator[None]:
    """Have a module or class of vLLM's call `function` meanwhile, a static method as such."""
    before = vars(owner)[name]
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, before)
