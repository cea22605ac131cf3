"""Old names of flags work, and say so."""

import argparse

import pytest

from serving.commands.renamed_flags import RENAMED, with_new_names
from serving.main import command_parser


def test_an_old_name_becomes_the_new_one_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["serve", "--reserve=0.5", "--port", "1", "--reserved"]

    assert with_new_names(given) == [
        *("serve", "--interactive-headroom=0.5", "--port", "1", "--reserved")
    ]
    assert "--reserve is now --interactive-headroom" in capsys.readouterr().err


def test_words_after_a_double_dash_are_not_flags(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["serve", "--", "--reserve", "x"]

    assert with_new_names(given) == given
    assert capsys.readouterr().err == ""


def test_new_names_are_flags_and_old_ones_are_not() -> None:
    parser = command_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    flags = {flag for each in commands.choices.values() for flag in each._option_string_actions}
    assert set(RENAMED.values()) <= flags
    assert not set(RENAMED) & flags
