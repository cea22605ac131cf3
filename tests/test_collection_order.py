"""Tests of the live server run last, and the one that ends it after them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process_guard import TESTS

pytestmark = [pytest.mark.process, pytest.mark.long]

CONFTEST = """
import pytest
@pytest.fixture
def live_server(): pass
"""
FILES = {
    "test_a.py": """
import pytest
@pytest.mark.ends_live_server
def test_ends(live_server): pass
@pytest.mark.long
def test_uses(live_server): pass
""",
    "test_b.py": "def test_uses(live_server): pass",
    "test_c.py": "def test_plain(): pass",
    "test_d.py": """
import pytest
@pytest.mark.long
def test_long(): pass
""",
}


@pytest.mark.parametrize(
    ("workers", "first"),
    [("", "test_b.py"), ("-n 1 --dist loadfile --no-loadscope-reorder", "test_a.py")],
)
def test_what_uses_the_live_server_is_last_and_what_ends_it_after_that(
    workers: str, first: str, tmp_path: Path
) -> None:
    for name, text in {"conftest.py": CONFTEST, **FILES}.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "tests.conftest", *workers.split()]
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent)}

    told = subprocess.run(
        [*command, first, *(name for name in FILES if name != first)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    passed = [line for line in told.splitlines() if "PASSED" in line]
    ran = [found for line in passed for found in re.findall(r"test_\w\.py::\w+", line)]
    assert set(ran[:2]) == {"test_c.py::test_plain", "test_d.py::test_long"}
    assert len(ran) == 5
    if workers:  # of files as wholes, those that take long begin
        assert ran[0] == "test_d.py::test_long"
    else:
        assert ran[-1] == "test_a.py::test_ends"
