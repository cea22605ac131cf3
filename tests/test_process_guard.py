"""A test without the mark `process` cannot start one, and the folders that imply it are there."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process_guard import (
    FOLDERS,
    MARKS_CHIPS,
    MARKS_PROCESSES,
    TESTS,
    ProcessStarted,
    lives_among_processes,
)

COMMAND = (sys.executable, "-c", "")


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run(COMMAND, check=True),
        lambda: os.posix_spawn(sys.executable, COMMAND, os.environ),
        lambda: os.system("true"),
        fork,
    ],
)
def test_a_test_without_the_mark_fails_where_it_starts_a_process(start: object) -> None:
    assert callable(start)
    with pytest.raises(ProcessStarted, match=r"test_process_guard.* starts a process .*`process`"):
        start()


@pytest.mark.process
def test_one_with_the_mark_may() -> None:
    assert subprocess.run(COMMAND, check=True).returncode == 0


def test_every_named_folder_is_there_and_what_lies_in_it_has_the_mark() -> None:
    for folder in FOLDERS:
        assert any((TESTS / folder).rglob("test_*.py")), folder
        assert lives_among_processes(TESTS / folder / "test_any.py")
    assert not lives_among_processes(TESTS / "serving" / "test_main.py")
    assert not lives_among_processes(TESTS.parent / "e2e")


def test_what_a_module_runs_while_it_is_imported_is_not_the_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import subprocess, sys\nsubprocess.run((sys.executable, '-c', ''), check=True)\n"
    (tmp_path / "runs_one_at_import.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("runs_one_at_import")


def test_marks_are_set_in_test_files_where_parts_of_the_suite_look_for_them() -> None:
    """`--part` imports a file by its text, so that a test whose mark stands elsewhere never ran."""
    for path in TESTS.rglob("*.py"):
        if not path.match("test_*.py"):
            text = path.read_text("utf-8")
            assert not MARKS_PROCESSES.search(text), path
            assert not MARKS_CHIPS.search(text), path
