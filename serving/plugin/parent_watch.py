"""Lets the engine's process end with the server's, however that ends, and clears up after it.

vLLM's engine process waits for messages of a parent that was killed for ever. multiprocessing gives
every child a pipe that closes when its parent has ended, also when that was before the child looked
and whichever of the parent's threads started it; one thread of the child waits for it. The engine
is killed, not asked: nobody is left who could hear of its requests, Ray's daemons end with it, and
scratch directories have watchers of their own.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SERVER_FILES: Final = "ULTRASERVE_SERVER_FILES"
"""Environment variable: what the server's own process removes when it ends, as PATH is written."""

_ENGINE: Final = "EngineCore"
"""How vLLM names its engine's process, with a suffix where there are several."""

_THREAD: Final = "parent-watch"


def in_engine_process() -> bool:
    """Whether this is a process that vLLM has started for an engine, not a user's own."""
    return multiprocessing.current_process().name.startswith(_ENGINE)


def end_with_parent() -> None:
    """Kill this process when its parent ends, where this is an engine's process.

    Nothing happens when it is already watched.
    """
    parent = multiprocessing.parent_process()
    watched = any(thread.name == _THREAD for thread in threading.enumerate())
    if parent is None or watched or not in_engine_process():
        return
    threading.Thread(target=_wait_for, args=(parent,), name=_THREAD, daemon=True).start()


def kill_within(wall_s: float) -> None:
    """Kill this process in `wall_s`, if it is an engine's and has not ended by then."""
    if in_engine_process():
        timer = threading.Timer(wall_s, _kill)
        timer.daemon = True
        timer.start()


@contextlib.contextmanager
def cleared_by_engine(path: Path) -> Iterator[None]:
    """Have engines that are started meanwhile remove `path` too when this process is killed."""
    before = os.environ.get(SERVER_FILES)
    os.environ[SERVER_FILES] = str(path) if before is None else f"{before}{os.pathsep}{path}"
    try:
        yield
    finally:
        os.environ.pop(SERVER_FILES)
        if before is not None:
            os.environ[SERVER_FILES] = before


def _wait_for(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    for path in filter(None, os.environ.get(SERVER_FILES, "").split(os.pathsep)):
        _remove(Path(path))
    _kill()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
