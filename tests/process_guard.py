"""The mark `process` of tests that start processes, and a guard that enforces it.

`make test-fast` skips them: processes cost seconds, ports and memory, and fail for reasons of their
own. A test has the mark by itself, its class or module, as an engine's, a fleet's or a slow one, or
in one of `FOLDERS`. A test without it fails at the line that starts a process.
"""

import functools
import os
import re
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
"""Folders of tests that start processes, or stand beside such; relative to `tests`."""

IMPLIED_BY: Final = ("engine", "fleet", "slow")
"""Engines and fleets are processes; a slow test is never fast."""

MARKS_CHIPS: Final = re.compile(r"\bmark\.(engine|fleet)\b")
MARKS_PROCESSES: Final = re.compile(r"\bmark\.process\b")
"""In the text of a test file, by which it is imported for a part of the suite, or not."""

EVENTS: Final = frozenset(
    {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
)
"""Python's audit events before a process starts."""


class ProcessStarted(AssertionError):  # as a failed assertion is: nothing that a caller expects
    """A test without the mark started a process."""


class ProcessGuard:
    """Refuses processes while a test without the mark runs."""

    def __init__(self) -> None:
        self._held: tuple[str, int] | None = None
        sys.addaudithook(self._hear)

    @contextmanager
    def holding(self, test: str) -> Iterator[None]:
        """Refuse them until the end of the block, in this process but not its forks."""
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
    """Whether a module is being imported: what a library then runs (`cpuinfo`, for vLLM, runs
    `file`) falls on the first test that imports it.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


@functools.cache
def lives_among_processes(path: Path) -> bool:
    if not path.is_relative_to(TESTS):
        return False
    inside = path.relative_to(TESTS)
    return any(inside.is_relative_to(folder) for folder in FOLDERS)


def starts_processes(item: pytest.Item) -> bool:
    """Whether the test has the mark or one that implies it, or is in a folder of such tests."""
    marked = any(item.get_closest_marker(mark) for mark in ("process", *IMPLIED_BY))
    return marked or lives_among_processes(item.path)
