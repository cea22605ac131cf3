"""Ends the engine's process, and further API processes, with the server's, however that ends, and
clears up after it.

vLLM's engine waits for ever for a killed parent. A thread waits on multiprocessing's pipe, which
closes with the parent, even before the child looks. The engine is killed, not asked: no client is
left, Ray's daemons end with it, and scratch directories have their own watchers.
"""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any, Final

from serving.access.control_claim import held_if_free
from serving.process.api_processes import NAME

SERVER_FILES: Final = "ULTRASERVE_SERVER_FILES"
"""Environment variable, JSON: the server's process id, and the files that it removes at its end.
Another server's is ignored."""

DIRECTORY_PREFIX: Final = "ultraserve-"
"""Prefix of directories that are removed with their content."""

_ENGINE: Final = "EngineCore"
"""vLLM's name of its engine's process, with a suffix where there are several."""

_CHILDREN: Final = (_ENGINE, NAME)

_THREAD: Final = "parent-watch"


def in_engine_process() -> bool:
    """Whether vLLM started this process for an engine."""
    return multiprocessing.current_process().name.startswith(_ENGINE)


def end_with_parent() -> None:
    """Kill this process when its parent ends, if it is an engine's or serves; idempotent."""
    parent = multiprocessing.parent_process()
    watched = any(thread.name == _THREAD for thread in threading.enumerate())
    is_child = multiprocessing.current_process().name.startswith(_CHILDREN)
    if parent is None or watched or not is_child:
        return
    threading.Thread(target=_wait_for, args=(parent,), name=_THREAD, daemon=True).start()


@cache
def watch_when_forked() -> None:
    """Have forked engines watch this process from their first moment.

    vLLM's engine waits minutes for its parent's first message before it reaches its executor.
    """
    register_after_fork(end_with_parent, lambda watch: watch())


def kill_within(wall_s: float) -> None:
    """Kill this process, if it is an engine's, unless it has ended in `wall_s`."""
    if in_engine_process():
        timer = threading.Timer(wall_s, _kill)
        timer.daemon = True
        timer.start()


@contextlib.contextmanager
def cleared_by_engine(path: Path, *, unless_held: Path | None = None) -> Iterator[None]:
    """Have engines started meanwhile remove `path` when this process is killed.

    A file stays while another server has the claim at `unless_held`. A directory's name begins with
    DIRECTORY_PREFIX.
    """
    before = os.environ.get(SERVER_FILES)
    held = None if unless_held is None else str(unless_held)
    files = [*_files_of(os.getpid()), {"path": str(path), "unless_held": held}]
    os.environ[SERVER_FILES] = json.dumps({"server": os.getpid(), "files": files})
    try:
        yield
    finally:
        os.environ.pop(SERVER_FILES)
        if before is not None:
            os.environ[SERVER_FILES] = before


def sockets_prefix(server: int) -> str:
    """How the name of the directory begins that the process `server` has for vLLM's sockets."""
    return f"{DIRECTORY_PREFIX}vllm-{server}-"


def clear_sockets(server: int) -> None:
    """Remove that directory, once `server` has ended: one killed with its engine leaves it."""
    for path in Path(tempfile.gettempdir()).glob(f"{sockets_prefix(server)}*"):
        with contextlib.suppress(OSError):
            _clear(path, None)


def _files_of(server: int | None) -> list[dict[str, Any]]:
    """Files noted by the process `server`; none for another's note or invalid text."""
    try:
        told = json.loads(os.environ.get(SERVER_FILES, "null"))
    except ValueError:
        return []
    if not isinstance(told, dict) or told.get("server") != server:
        return []
    return list(told["files"])


def _wait_for(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    for file in _files_of(parent.pid):
        with contextlib.suppress(OSError):
            _clear(Path(file["path"]), file["unless_held"])
    _kill()


def _clear(path: Path, unless_held: str | None) -> None:
    """Remove a file or directory of this user; raises OSError."""
    held = nullcontext(True) if unless_held is None else held_if_free(Path(unless_held))
    with held as is_free:
        status = path.lstat()
        if not is_free or status.st_uid != os.getuid():
            return
        if not stat.S_ISDIR(status.st_mode):
            path.unlink()
        elif path.name.startswith(DIRECTORY_PREFIX):
            shutil.rmtree(path, ignore_errors=True)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
