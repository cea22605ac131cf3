"""What is done once for all workers of a run, which would else each do it at the same time."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

TESTS: Final = Path(__file__).resolve().parent


class KernelCompiler:
    """tests/kernels.py in a process of its own, while the workers collect their tests."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start_for(self, config: pytest.Config) -> None:
        """Start it where workers are to run all everyday tests, and not some."""
        some = any(map(config.getoption, ("--fast", "--chips", "keyword", "collectonly")))
        is_controller = config.getoption("numprocesses", None) and not hasattr(
            config, "workerinput"
        )
        if is_controller and not some and config.args_source is config.ArgsSource.TESTPATHS:
            command = [sys.executable, "-m", "tests.kernels"]
            self._process = subprocess.Popen(command, cwd=TESTS.parent)

    def wait(self) -> None:
        """However it ends: a test that needs a kernel which cannot be compiled says more."""
        if self._process is not None:
            self._process.wait()


class FolderScheduling(LoadScopeScheduling):
    """One worker has all tests of a folder of `tests`: some of its files share an engine."""

    def _split_scope(self, nodeid: str) -> str:
        return "/".join(nodeid.split("/")[:2])


@contextmanager
def one_writes_bytecode() -> Iterator[None]:
    """Collect: in a fresh clone the first worker alone, and the others read what it compiled."""
    with (TESTS / "__pycache__" / "collection.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # One of the last modules to be collected.
        is_written = any(TESTS.glob("__pycache__/test_process_guard.*-pytest-*.pyc"))
        if is_written or sys.dont_write_bytecode:
            fcntl.flock(lock, fcntl.LOCK_UN)
        yield
