"""Programs of the system that some tests need: a path, or a skip that says what is missing.

Such a skip always reads "needs NAME (what brings it)". Where CI is "true" there is no skip: the
test fails, so that nothing goes untested there without anybody's notice.
"""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

SYSTEM_DEPS = ("prometheus", "promtool", "chromium", "chromedriver", "systemd-analyze")
"""What `make system-deps` installs; a test holds this against .ci/system_deps.py."""


def program(name: str) -> Path:
    """Where the program of this name is; without it the test is skipped, or fails in CI."""
    found = shutil.which(name)
    if found is None:
        lacking(name, "make system-deps" if name in SYSTEM_DEPS else f"put {name} on PATH")
    return Path(found)


def lacking(name: str, remedy: str) -> NoReturn:
    """Skip the test that needs `name`, which is not here; fail it in CI."""
    reason = f"needs {name} ({remedy})"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
