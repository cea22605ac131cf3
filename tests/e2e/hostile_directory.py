"""A directory with a file beside it for every module that a program may import.

Each writes its name into a list when it is imported, and then is empty: a program that imports one
for the library's has not only run it, but goes wrong soon after.
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
    """Put a `NAME.py` there for the standard library, what is installed, and our own packages."""
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
    """What was imported from there, and by which command lines."""
    path = directory / _IMPORTED
    return path.read_text().splitlines() if path.exists() else []
