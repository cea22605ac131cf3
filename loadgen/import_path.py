"""Where the load generator and the processes that it starts import from: installed code alone.

With `-m`, and in processes that multiprocessing starts, Python looks in the working directory
first: a user's `click.py` there is imported for the library.
"""

import os
import sys
from pathlib import Path


def seal_import_path() -> None:
    """Take the working directory out of this process's path, and of its children's.

    For a program's entry point: it changes `sys.path` and the environment. A directory that
    PYTHONPATH names stays, and so does the one that holds our code, behind all others.
    """
    code = str(Path(__file__).resolve().parents[1])
    named = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    kept = [part for part in sys.path if part not in ("", str(Path.cwd())) or part in named]
    sys.path[:] = kept if code in kept else [*kept, code]
    os.environ["PYTHONSAFEPATH"] = "1"
    if named:
        os.environ["PYTHONPATH"] = os.pathsep.join(named)
