"""Figures of a machine that are kept from run to run."""

import os
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.specs.fault import FaultKind
from serving.analysis.day import kept_figures
from serving.analysis.day.kept_figures import FILES_MAX, FigureStore, MachineFigures
from serving.analysis.day.replica_curve import ReplicaCurve
from tests.serving.analysis.day.days import CHOICE, CURVE, point, trained

MADE = MachineFigures(choice=CHOICE, serving=(4,), curves=(CURVE,), trained=trained())


class Asked:
    """A store, and how often it computed."""

    def __init__(self, folder: Path) -> None:
        self.store = FigureStore(folder)
        self.computed = 0
        self.errors: list[OSError] = []

    def __call__(self, question: object, made: MachineFigures = MADE) -> MachineFigures:
        def compute() -> MachineFigures:
            self.computed += 1
            return made

        return self.store.figures(question, compute, self.errors.append)


def same(one: Any, other: Any) -> bool:
    """To the bit, field by field."""
    return all(
        np.array_equal(getattr(one, each.name), getattr(other, each.name), equal_nan=True)
        if isinstance(getattr(one, each.name), np.ndarray)
        else repr(getattr(one, each.name)) == repr(getattr(other, each.name))
        for each in fields(one)
    )


def test_a_question_is_computed_once_and_another_anew(tmp_path: Path) -> None:
    asked = Asked(tmp_path / "cache" / "ultraserve")
    first = asked(("a", 1))
    assert (first, first.kept_unix_s) == (MADE, None)
    again = Asked(tmp_path / "cache" / "ultraserve")(("a", 1))
    assert again.kept_unix_s is not None
    assert same(again.curve, CURVE)
    assert same(again.trained, MADE.trained)
    asked(("a", 1))
    assert asked.computed == 1
    assert asked(("a", 2)).kept_unix_s is None
    assert asked.computed == 2


@dataclass(frozen=True)
class Question:
    one: Any
    two: Any = None


@dataclass(frozen=True)
class OtherQuestion:
    one: Any
    two: Any = None


QUESTIONS = (
    *(Question(1), OtherQuestion(1), Question(True), Question(1.0), Question("1")),
    *(Question(None, 1), Question(np.float64(1)), Question(np.int64(1))),
    *(Question((1, 2)), Question((1,), 2), Question(((1,), 2)), Question([1, 2]), Question({1: 2})),
    *(Question({2: 1}), Question(np.array([1, 2])), Question(np.array([1.0, 2]))),
    *(Question(np.array([[1], [2]])), Question(np.array([[1, 2]])), Question(1.0000000000000002)),
    *(Question(FaultKind.LOSE_CHIP), Question(FaultKind.HANG_CHIP), Question(("ab", "c"))),
    *(Question(("a", "bc")), Question("nan"), Question(float("nan"))),
)  # fmt: skip


def test_questions_that_differ_in_anything_are_different_questions(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    for question in QUESTIONS:
        asked(question)
    assert asked.computed == len(QUESTIONS)
    for question in deepcopy(QUESTIONS):
        assert asked(question).kept_unix_s is not None
    with pytest.raises(TypeError, match="expected a dataclass"):
        asked(Question({1, 2}))


@given(rate=st.floats(1e-300, 0.33), seconds=st.floats(allow_nan=True, allow_infinity=True))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_number_comes_back_to_the_bit(tmp_path: Path, rate: float, seconds: float) -> None:
    curve = ReplicaCurve(
        points=(point(rate, 1.0, ttft_p99_s=seconds),),
        saturated_per_s=1 / 3,
        required_share=0.9,
        idle_watts=0.1 + 0.2,
        lasting_per_s=np.inf,
        ttft_limit_s=None,
        tpot_limit_s=None,
    )
    asked = Asked(tmp_path)
    asked((rate, seconds), replace(MADE, curves=(curve,)))
    assert same(asked((rate, seconds)).curve, curve)


def test_another_program_computes_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(tmp_path)
    asked("a")
    monkeypatch.setattr(kept_figures, "_program", lambda: b"a line of it is another")
    assert asked("a").kept_unix_s is None


def test_a_program_is_the_text_and_the_place_of_its_files(tmp_path: Path) -> None:
    def texts() -> list[bytes]:
        return list(kept_figures._sources(tmp_path))

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "chips.csv").write_text("1")
    (tmp_path / "b.py").write_text("2")
    (tmp_path / "b.pyc").write_text("3")
    assert texts() == [b"b.py", b"2", b"data/chips.csv", b"1"]
    (tmp_path / "b.py").rename(tmp_path / "data" / "b.py")
    assert texts() == [b"data/b.py", b"2", b"data/chips.csv", b"1"]


@pytest.mark.parametrize("length", [0, 1, 15, 16, 40])
def test_a_file_that_is_not_whole_is_computed_anew(tmp_path: Path, length: int) -> None:
    asked = Asked(tmp_path)
    asked("a")
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:length])
    assert asked("a").kept_unix_s is None
    flipped = bytearray(file.read_bytes())
    flipped[-1 - length] ^= 1
    file.write_bytes(bytes(flipped))
    assert asked("a").kept_unix_s is None
    assert asked("a").kept_unix_s is not None
    assert list(tmp_path.iterdir()) == [file]


def test_what_was_not_read_for_the_longest_time_goes(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    for number in range(FILES_MAX):
        asked(number)
        for file in tmp_path.iterdir():  # a clock of whole seconds
            os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 1))
    assert asked(0).kept_unix_s is not None
    asked("one more")
    assert len(list(tmp_path.iterdir())) == FILES_MAX
    assert asked(0).kept_unix_s is not None
    assert asked(1).kept_unix_s is None


def test_a_folder_that_cannot_be_made_is_told_and_the_answer_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    asked = Asked(tmp_path / "file" / "folder")
    assert asked("a") is MADE
    assert isinstance(asked.errors[0], OSError)
