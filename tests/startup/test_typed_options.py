"""Options made of a dataclass, and the object made of what was typed."""

import argparse
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest

from startup.typed_options import REQUIRED, add_options, given_options, option, read_options


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Paint:
    GROUP = "paint: what is on the wall"

    colour: Colour = option(Colour.RED, "of the wall")
    coats: int = option(1_500, "of it", "--coats", "-c")


@dataclass(frozen=True, kw_only=True)
class Order(Paint):
    name: str = option(REQUIRED, "of the client", metavar="NAME")
    wait_s: float = option(2.5, "seconds, at most 50%")
    plan: Path | None = option(None, "drawn")
    words: tuple[str, ...] = option((), "any number", "--word")
    walls: tuple[str, ...] = option(("north",), "to paint", "--wall")
    roof: Literal["flat", "steep"] = option("flat", "its form")
    empty: bool = option(False, "without furniture", one_of="use")
    let: bool = option(False, "to others", one_of="use")
    heated: bool = option(True, "not in summer", "--no-heating")
    keys: dict[str, str] = option(dict, "by class", type=lambda text: dict([text.split("=")]))
    shelves: int = 3


def parser(**how: object) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_options(made, Order, **how)  # type: ignore[arg-type]
    return made


def test_what_is_typed_makes_an_object_and_the_class_fills_in_the_rest() -> None:
    typed = "--name a --colour blue -c 2 --wait 1 --plan p --word x --word y --no-heating"
    read = read_options(Order, parser().parse_args(typed.split()))

    assert read == Order(
        name="a", colour="blue", coats=2, wait_s=1.0, plan=Path("p"), words=("x", "y"), heated=False
    )
    assert read_options(Order, parser().parse_args(["--name", "a"])) == Order(name="a")


def test_without_defaults_only_what_was_given_is_there() -> None:
    args = parser(defaults=None).parse_args(["--name", "a", "--coats", "1500"])

    assert given_options(Order, args) == {"name": "a", "coats": 1500}


def test_a_command_has_defaults_of_its_own_and_leaves_options_out() -> None:
    made = parser(defaults={"coats": 3, "name": "b"}, without=("plan",))

    assert read_options(Order, made.parse_args([])).coats == 3
    assert "--plan" not in made.format_help()


def test_what_is_typed_stands_in_place_of_a_default_not_behind_it() -> None:
    once = parser(defaults={"words": ("z",)}).parse_args(
        ["--name", "a", "--wall", "x", "--word", "y"]
    )
    twice = parser(defaults=None).parse_args(["--name", "a", "--wall", "x", "--wall", "y"])

    assert read_options(Order, once) == Order(name="a", walls=("x",), words=("y",))
    assert given_options(Order, twice) == {"name": "a", "walls": ("x", "y")}
    assert read_options(Order, parser().parse_args(["--name", "a"])).walls == ("north",)


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "--name a --colour green",
        "--name a --roof round",
        "--name a --coats many",
        "--name a --empty --let",
        "--name a --shelves 2",
    ],
)
def test_what_does_not_fit_is_refused(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(typed.split())
    assert "error: " in capsys.readouterr().err


def test_the_help_has_groups_texts_and_defaults() -> None:
    words = " ".join(parser().format_help().split())

    assert "paint: what is on the wall --colour {red,blue} of the wall (default: red)" in words
    assert "of it (default: 1,500)" in words
    assert "seconds, at most 50% (default: 2.5)" in words
    assert "--plan FILE drawn --word" in words
