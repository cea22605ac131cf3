"""Tests that start processes say so: the mark `process`, and a guard that holds the others to it.

`make test-fast` runs no test that starts one, because processes cost seconds, ports and memory,
and fail for reasons of their own. A test has the mark when it, its class or its module says so,
when it is an engine's, a fleet's or slow, or when it lives in one of `FOLDERS`. A test without the
mark fails at the line where it starts one.
"""

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

TESTS: Final = Path(__file__).resolve().parent

FOLDERS: Final = (
    "deploy/compose",
    "deploy/docker",
    "deploy/guides",
    "deploy/k8s",
    "deploy/kuberay",
    "deploy/live",
    "deploy/systemd",
    "e2e",
)
"""Where every test starts processes, or stands beside those that do; relative to `tests`."""

IMPLIED_BY: Final = ("engine", "fleet", "slow")
"""An engine and a fleet are processes; a slow test is in no fast loop, whatever it starts."""

EVENTS: Final = frozenset(
    {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
)
"""What Python's audit says when a process is about to start."""


class ProcessStarted(AssertionError):  # as a failed assertion is: nothing that a caller expects
    """A test without the mark started a process."""


class ProcessGuard:
    """Refuses processes while a test without the mark runs."""

    def __init__(self) -> None:
        self._held: tuple[str, int] | None = None
        sys.addaudithook(self._hear)

    @contextmanager
    def holding(self, test: str) -> Iterator[None]:
        """Refuse them until the end of the block, to this process and none that it has forked."""
        self._held = (test, os.getpid())
        try:
            yield
        finally:
            self._held = None

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        held = self._held
        if held is None or event not in EVENTS or held[1] != os.getpid() or _importing():
            return
        raise ProcessStarted(
            f"{held[0]} starts a process ({event} {arguments[:1]}): mark it `process`"
        )


def _importing() -> bool:
    """Whether a module is being imported: what a library runs then (`cpuinfo`, for vLLM, runs
    `file`) falls on whichever test imports it first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


@functools.cache
def lives_among_processes(path: Path) -> bool:
    """Whether a test file or folder is below one of `FOLDERS`."""
    if not path.is_relative_to(TESTS):
        return False
    inside = path.relative_to(TESTS)
    return any(inside.is_relative_to(folder) for folder in FOLDERS)


def starts_processes(item: pytest.Item) -> bool:
    """Whether the test has the mark, or one that implies it, or lives where all have it."""
    marked = any(item.get_closest_marker(mark) for mark in ("process", *IMPLIED_BY))
    return marked or lives_among_processes(item.path)
