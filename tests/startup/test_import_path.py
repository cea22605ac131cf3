"""Where a sealed process and its children import from: each case is a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from startup.import_path import CODE_ROOT

pytestmark = pytest.mark.process

REPORT = """
import json, os, subprocess, sys
{seal}
child = [sys.executable, "-c", "import json, sys, startup; print(json.dumps(sys.path))"]
print(json.dumps([sys.path, json.loads(subprocess.check_output(child, cwd={cwd!r}))]))
"""
SEAL = "from startup.import_path import seal_import_path; seal_import_path()"
SEALED_CHILDREN = (
    "from startup.import_path import sealed_children; kept = sealed_children(); kept.__enter__()"
)


def paths(
    cwd: Path, *, searched: str | None = None, seal: str = SEAL, python: tuple[str, ...] = ()
) -> tuple[list[str], list[str]]:
    """`sys.path` of a process in `cwd` that seals, and of a child; `searched` is its PYTHONPATH."""
    environment = {name: word for name, word in os.environ.items() if not name.startswith("PYTHON")}
    if searched is not None:
        environment["PYTHONPATH"] = searched
    program = REPORT.format(seal=seal, cwd=str(cwd))
    said = subprocess.check_output(
        [sys.executable, *python, "-c", program], cwd=cwd, env=environment, text=True
    )
    own, child = json.loads(said)
    return own, child


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    made = tmp_path.resolve() / "elsewhere"
    made.mkdir()
    return made


def test_the_working_directory_is_in_neither_path(elsewhere: Path) -> None:
    for path in paths(elsewhere):
        assert not {"", str(elsewhere)} & set(path)
        assert CODE_ROOT in path


def test_a_checkout_stands_behind_what_is_installed() -> None:
    for path in paths(Path(CODE_ROOT)):
        assert "" not in path
        assert path[-1] == CODE_ROOT


def test_pythonpath_is_kept_but_for_its_empty_parts(elsewhere: Path) -> None:
    (elsewhere / "more").mkdir()
    for path in paths(elsewhere, searched="more::/somewhere:"):
        assert "" not in path
        assert str(elsewhere) not in path
        assert "/somewhere" in path
    assert str(elsewhere / "more") in paths(elsewhere, searched="more")[1]


def test_a_checkout_that_is_not_installed_is_found_by_children(elsewhere: Path) -> None:
    package = elsewhere / "startup"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(Path(CODE_ROOT, "startup", "import_path.py"), package)

    own, child = paths(elsewhere, python=("-S",))  # without site, nothing is installed

    assert str(elsewhere) in child
    assert own[-1] == str(elsewhere)


def test_children_alone_may_be_sealed(elsewhere: Path) -> None:
    own, child = paths(elsewhere, seal=SEALED_CHILDREN)

    assert "" in own
    assert not {"", str(elsewhere)} & set(child)
