"""System programs that some tests need: a path, or a skip naming the missing one.

A skip reads "needs NAME (how to install it)". Where CI is "true" the test fails instead, so that no
test is lost unnoticed.
"""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

SYSTEM_DEPS = ("prometheus", "promtool", "chromium", "chromedriver", "systemd-analyze")
"""Installed by `make system-deps`; a test compares it with .ci/system_deps.py."""


def program(name: str) -> Path:
    """The program's path; without it the test is skipped, or fails in CI."""
    found = shutil.which(name)
    if found is None:
        lacking(name, "make system-deps" if name in SYSTEM_DEPS else f"put {name} on PATH")
    return Path(found)


def lacking(name: str, remedy: str) -> NoReturn:
    """Skip the test that needs `name`; fail it in CI."""
    reason = f"needs {name} ({remedy})"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
