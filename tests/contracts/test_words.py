"""`.ci/words.py` refuses a replaced word that is added, and lets the counts only fall."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TICKET = r"\b[Tt]ickets?\b"


@pytest.fixture(scope="module")
def words() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_words", ROOT / ".ci/words.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ci_words"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "door.py").write_text("ticket = Ticket()\nstickets = 1\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    return tmp_path


def test_every_time_a_word_stands_is_found_with_its_line(words: ModuleType, files: Path) -> None:
    places = words.found(files, ["door.py", "picture.png"])

    assert [each.line for each in places[TICKET]] == [1, 1]
    assert [each.line for each in places[r"\b[Dd]oors?\b"]] == [0]  # the file's own name
    assert sum(map(len, places.values())) == 3


def test_one_more_than_allowed_is_refused_with_the_word_that_replaces_it(
    words: ModuleType, files: Path
) -> None:
    places = {TICKET: words.found(files, ["door.py"])[TICKET]}

    assert words.refusals(places, {TICKET: 2}) == []
    first, *where = words.refusals(places, {TICKET: 1})
    assert "2 times, 1 allowed; say permit" in first
    assert len(where) == 2


def test_a_word_without_a_count_may_not_stand_at_all(words: ModuleType, files: Path) -> None:
    places = {TICKET: words.found(files, ["door.py"])[TICKET]}

    assert words.refusals(places, {}) != []


def test_counts_only_fall(words: ModuleType, files: Path) -> None:
    places = {TICKET: words.found(files, ["door.py"])[TICKET]}

    assert words.lowered(places, {TICKET: 5}) == {TICKET: 2}
    assert words.lowered(places, {TICKET: 1}) == {TICKET: 1}
    assert words.lowered({TICKET: []}, {TICKET: 5}) == {}


def test_a_file_that_keeps_a_word_keeps_that_one_alone(words: ModuleType, tmp_path: Path) -> None:
    (kept, *_) = words.KEPT
    (tmp_path / kept).parent.mkdir(parents=True)
    (tmp_path / kept).write_text("a ticket for the yardstick\n")

    places = words.found(tmp_path, [kept])

    assert [word for word, where in places.items() if where] == ["[Yy]ardstick"]


@pytest.mark.slow
@pytest.mark.process
def test_no_replaced_word_was_added_to_the_repository(words: ModuleType) -> None:
    assert words.main([]) == 0
