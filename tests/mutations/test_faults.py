"""Which faults are made of a text, and that Python runs the planted one."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from tests.mutations.areas import AREAS, ROOT, nearest_tests
from tests.mutations.draw import PER_AREA, drawn
from tests.mutations.faults import faults_of
from tests.mutations.planted_fault import plant

TEXT = '''"""A module."""

LIMIT = 3


def f(a: int, b: int) -> int:
    """Not 7."""
    if a < (b - 1) or not b:
        raise ValueError(f"{a + b}")
    zip(a, strict=True)
    return g(max(a, 2), b)
'''
MODULE = Path("a/module.py")


def changes(text: str) -> set[tuple[str, str, str]]:
    return {(fault.kind, fault.before, fault.after) for fault in faults_of(MODULE, text)}


def test_the_faults_of_a_function_by_hand() -> None:
    test = "a < (b - 1) or not b"
    assert changes(TEXT) == {
        ("comparison", "a < (b - 1)", "a <= (b - 1)"),
        ("arithmetic", "b - 1", "b + 1"),
        ("off by one", "1", "2"),
        ("off by one", "2", "3"),
        ("and or", test, "((a < (b - 1)) and (not b))"),
        ("dropped branch", test, "False"),
        ("minimum", "max", "min"),
        ("swapped arguments", "g(max(a, 2), b)", "g(b, max(a, 2))"),
    }


def test_a_fault_changes_its_own_place_and_no_other() -> None:
    (fault,) = [each for each in faults_of(MODULE, TEXT) if each.kind == "comparison"]

    assert fault.applied(TEXT) == TEXT.replace("a <", "a <=")


def test_a_fault_keeps_its_name_when_its_module_moves_and_lines_come_before_it() -> None:
    here = [fault.name for fault in faults_of(MODULE, TEXT)]
    there = [fault.name for fault in faults_of(Path("b/c/module.py"), f"import os\n{TEXT}")]

    assert here == there
    assert len(set(here)) == len(here)


@pytest.mark.long
def test_the_draw_is_the_seed_s_and_has_as_many_of_each_area() -> None:
    first = drawn(1)

    assert first == drawn(1) != drawn(2)
    for at, area in enumerate(AREAS):
        of_area = first[at * PER_AREA : (at + 1) * PER_AREA]
        assert {fault.module for fault in of_area} <= set(area.modules())
        assert len({(fault.module, fault.function) for fault in of_area}) == PER_AREA


@pytest.mark.long
def test_a_fault_that_changes_nothing_makes_room_for_the_next() -> None:
    first = drawn(1)
    other = drawn(1, without={first[0].name})

    assert first[0] not in other
    assert [each for each in other if each not in first] == [other[PER_AREA - 1]]


@pytest.mark.long
def test_every_drawn_fault_is_still_python_and_has_tests_near_it() -> None:
    for fault in drawn(1):
        compile(fault.applied((ROOT / fault.module).read_text()), str(fault.module), "exec")
        assert nearest_tests(fault.module)


def test_a_planted_fault_is_what_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "emulator.units"
    module = importlib.import_module(name)
    text = Path(str(module.__file__)).read_text(encoding="utf-8") + "\nPLANTED = True\n"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys.modules["emulator"], "units", module)
    plant(json.dumps({"module": "emulator/units.py", "name": name, "text": text}))

    faulty = importlib.import_module(name)
    monkeypatch.setitem(sys.modules, name, module)

    assert faulty.PLANTED
    assert not hasattr(module, "PLANTED")


def test_a_module_that_is_there_already_is_too_late_for_its_fault() -> None:
    importlib.import_module("emulator.units")
    with pytest.raises(RuntimeError, match=r"emulator\.units was imported before"):
        plant(json.dumps({"module": "emulator/units.py", "name": "emulator.units", "text": ""}))
