"""Import path of this program and its children: installed code alone.

Python looks for modules first in the script's directory, with `-m` and `-c` in the working
directory: a user's `click.py` there replaces the library. `-P`, or PYTHONSAFEPATH in the
environment, prevents that. PYTHONPATH stays, since a checkout needs it, but not its empty parts,
which mean the working directory too.
"""

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

SAFE_PATH: Final = "PYTHONSAFEPATH"
"""Any value of this variable is `-P` for an interpreter and its children."""

_SEARCHED: Final = "PYTHONPATH"
CODE_ROOT: Final = str(Path(__file__).resolve().parents[1])
"""Parent directory of our packages: a checkout, or where they are installed."""


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """`environment` (default: this process's) for a child: import path, no working directory."""
    made = dict(os.environ if environment is None else environment)
    parts = made.get(_SEARCHED, "").split(os.pathsep)
    searched = [str(Path(part).absolute()) for part in parts if part]
    if not _is_installed() and CODE_ROOT not in searched:
        searched.append(CODE_ROOT)
    made[SAFE_PATH] = "1"
    made.pop(_SEARCHED, None)
    return made | ({_SEARCHED: os.pathsep.join(searched)} if searched else {})


@contextlib.contextmanager
def variables(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables, or remove those with None, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def sealed_children() -> AbstractContextManager[None]:
    """Give processes started meanwhile, by any library, `child_environment`."""
    return variables(_path_in(child_environment()))


def _path_in(environment: Mapping[str, str]) -> dict[str, str | None]:
    return {name: environment.get(name) for name in (SAFE_PATH, _SEARCHED)}


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _is_installed() -> bool:
    """Whether any interpreter finds our packages behind the standard library by default."""
    return CODE_ROOT in sys.path[_own_path_begins() :]


def _own_path_begins() -> int:
    """Index in `sys.path` of the interpreter's own directories, which follow the script's."""
    standard = sysconfig.get_path("stdlib")
    return sys.path.index(standard) if standard in sys.path else 0


def seal_import_path() -> None:
    """Remove the script's and the working directory from the import path of this process and its
    children, for a program's entry point; changes `sys.path` and the environment.
    """
    environment = child_environment()
    _set(_path_in(environment))
    asked = set(environment.get(_SEARCHED, "").split(os.pathsep))
    unasked = {"", str(Path(sys.argv[0]).resolve().parent)}
    with contextlib.suppress(FileNotFoundError):  # it was removed
        unasked |= {str(Path.cwd()), str(Path.cwd().resolve())}
    begins = _own_path_begins()
    before = [part for part in sys.path[:begins] if part not in unasked - (asked - {""})]
    sys.path[:] = before + sys.path[begins:]
    if CODE_ROOT not in sys.path:
        sys.path.append(CODE_ROOT)
