"""A class name stands once in the code base: one `Schedule`, one `Demand`, one `Window`."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("emulator", "serving", "loadgen", "reporting", "startup", "deploy", "protos", ".ci")


def twice(root: Path) -> dict[str, list[str]]:
    """Classes defined in more than one place, by name; generated code is left out."""
    places: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if "_pb2" in path.name or "node_modules" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(str(path.relative_to(root)))
    return {name: files for name, files in places.items() if len(files) > 1}


@pytest.mark.long
def test_class_names_are_unique() -> None:
    assert twice(ROOT) == {}


def test_a_second_class_of_a_name_is_found(tmp_path: Path) -> None:
    for package in ("emulator", "serving"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "clock.py").write_text("class Clock:\n    class Tick: ...\n")
    (tmp_path / "serving/clock_pb2.py").write_text("class Call: ...\nclass Call: ...\n")

    assert set(twice(tmp_path)) == {"Clock", "Tick"}
