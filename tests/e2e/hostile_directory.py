"""A directory with a decoy file for every module that a program may import.

Each decoy writes its name into a list when imported, and is otherwise empty: a program that imports
one has run it, and fails soon after.
"""

import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

_IMPORTED: Final = "imported-here"
_MODULE: Final = """\
import os
with open(os.path.join(os.path.dirname(__file__), {list!r}), "a") as seen:
    command = open("/proc/self/cmdline").read().replace("\\0", " ")
    seen.write({name!r} + " in " + command[:300] + "\\n")
"""


def fill_with_modules(directory: Path) -> None:
    """Write a `NAME.py` for the standard library, installed packages, and our own."""
    names = {*sys.stdlib_module_names, *packages_distributions()}
    names |= {
        "emulator",
        "serving",
        "loadgen",
        "protos",
        "reporting",
        "startup",
        "sitecustomize",
        "usercustomize",
    }
    for name in names:
        if name.isidentifier():
            path = directory / f"{name}.py"
            path.write_text(_MODULE.format(list=_IMPORTED, name=name))


def imported_in(directory: Path) -> list[str]:
    """Decoys imported, with the command lines."""
    path = directory / _IMPORTED
    return path.read_text().splitlines() if path.exists() else []
