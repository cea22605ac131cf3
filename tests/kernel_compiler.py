"""Kernels are compiled once for all workers of a run, which would else each do it at one time."""

import subprocess
import sys
from pathlib import Path

import pytest


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
            self._process = subprocess.Popen(command, cwd=Path(__file__).parents[1])

    def wait(self) -> None:
        """However it ends: a test that needs a kernel which cannot be compiled says more."""
        if self._process is not None:
            self._process.wait()
