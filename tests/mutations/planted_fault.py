"""A pytest plugin that plants one fault: `-p tests.mutations.planted_fault`, named by FAULT.

The module is compiled from its faulty text; no file changes, so concurrent runs and editors do not
interfere. Loaded before any module of the product.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

VARIABLE: Final = "ULTRASERVE_FAULT"
"""JSON: module (relative path), name (dotted), text (the whole faulty module)."""


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, _fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


class PlantedFault(importlib.abc.MetaPathFinder):
    """Finds one module, and replaces its text."""

    def __init__(self, *, name: str, path: Path, text: str) -> None:
        self._name = name
        self._path = path
        self._text = text

    def find_spec(
        self,
        fullname: str,
        _path: Sequence[str] | None,
        _target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """The faulty module's spec; None for others."""
        if fullname != self._name:
            return None
        loader = _Loader(fullname, str(self._path), self._text)
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)


def plant(described: str) -> None:
    """Install the finder first; the module must not have been imported."""
    fault = json.loads(described)
    name = fault["name"]
    if name in sys.modules:
        raise RuntimeError(f"{name} was imported before its fault was planted")
    path = Path(__file__).resolve().parents[2] / fault["module"]
    sys.meta_path.insert(0, PlantedFault(name=name, path=path, text=fault["text"]))


if VARIABLE in os.environ:
    plant(os.environ[VARIABLE])
