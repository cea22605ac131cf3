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


def ran(folder: Path, *words: str) -> list[str]:
    """The tests that pytest runs with the arguments, in order."""
    for name, text in {"conftest.py": CONFTEST, **FILES}.items():
        (folder / name).write_text(text)
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "tests.conftest", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    passed = [line for line in told.splitlines() if "PASSED" in line]
    return [found for line in passed for found in re.findall(r"test_\w\.py::\w+", line)]


@pytest.mark.parametrize(
    ("workers", "first"),
    [("", "test_b.py"), ("-n 1 --dist loadfile --no-loadscope-reorder", "test_a.py")],
)
def test_what_uses_the_live_server_is_last_and_what_ends_it_after_that(
    workers: str, first: str, tmp_path: Path
) -> None:
    order = ran(tmp_path, *workers.split(), first, *(name for name in FILES if name != first))

    assert set(order[:2]) == {"test_c.py::test_plain", "test_d.py::test_long"}
    assert len(order) == 5
    if workers:  # of files as wholes, those that take long begin
        assert order[0] == "test_d.py::test_long"
    else:
        assert order[-1] == "test_a.py::test_ends"


@pytest.mark.parametrize("workers", [2, 7])
@pytest.mark.parametrize("named", [(), tuple(FILES), ("test_a.py::test_uses", "test_c.py")])
def test_workers_with_shares_run_each_test_once(
    workers: int, named: tuple[str, ...], tmp_path: Path
) -> None:
    order = ran(tmp_path, "-n", str(workers), "--dist", "each", "--shares", *named)

    assert sorted(order) == sorted(ran(tmp_path, *named))
