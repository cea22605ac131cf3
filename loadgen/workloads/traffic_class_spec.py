"""Traffic classes on the command line (`--traffic-class 'NAME KEY=VALUE ...'`) or in a file.

A key is the name of a class option (`rate`, `slo`, `header`) with its value, or alone for an option
without one. One parser reads both.
"""

import argparse
import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from loadgen.errors import FileError, LoadError, OptionError

SPEC_OPTION: Final = "--traffic-class"
FILE_OPTION: Final = "--classes"
OLD_OPTION: Final = "--class"  # goes with the next release

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

# An option of a class's own removes these of what it would share.
_REPLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "rate": ("concurrency", "speedup"),
    "concurrency": ("rate", "speedup", "gaps", "burstiness"),
    "speedup": ("rate", "concurrency", "gaps", "burstiness"),
    "trace": ("input", "output"),
}

Setting = tuple[str, str | None]
"""An option's name without dashes, and its value; None for an option that takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClassSpec:
    """A class's name and its own settings. Raises OptionError for an invalid name."""

    name: str
    settings: tuple[Setting, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise OptionError(SPEC_OPTION, self.name, "a name of letters, digits, dots, - and _")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME KEY=VALUE ...`, quoted as in a shell; raises OptionError."""
        try:
            name, *words = shlex.split(text) or [""]
        except ValueError as error:
            raise OptionError(SPEC_OPTION, text, f"NAME KEY=VALUE ... ({error})") from error
        settings = (word.partition("=") for word in words)
        return cls(
            name=name, settings=tuple((key, value if eq else None) for key, eq, value in settings)
        )

    def __str__(self) -> str:
        written = (key if value is None else f"{key}={value}" for key, value in self.settings)
        return shlex.join([self.name, *written])

    def without(self, options: Collection[str]) -> Self:
        """Drop the settings of `options`, named with their dashes."""
        kept = tuple(each for each in self.settings if f"--{each[0]}" not in options)
        return replace(self, settings=kept)

    def having(self, settings: Iterable[Setting]) -> Self:
        """Append settings."""
        return replace(self, settings=(*self.settings, *settings))


def add_traffic_class_arguments(
    parser: argparse.ArgumentParser,
    *,
    own: str = "workload, lengths, sessions, arrivals and requests",
) -> None:
    """Add `--traffic-class` and `--classes`; `own` names the groups of a class's options."""
    group = parser.add_argument_group(
        "traffic classes",
        f"a class's own options are those of the groups {own};\n"
        "options of the command line are the run's, and the default of every class",
    )
    group.add_argument(
        SPEC_OPTION,
        dest="classes",
        type=TrafficClassSpec.parse,
        action="append",
        default=[],
        metavar="SPEC",
        help="a class: 'NAME KEY=VALUE ...' with the names of options for keys, as in 'chat rate=4 "
        "turns=3'; may be given again",
    )
    group.add_argument(
        FILE_OPTION,
        dest="class_file",
        type=lambda text: read_classes(Path(text)),
        default=[],
        metavar="FILE",
        help="classes from a TOML file: a table for each, with the same keys",
    )


def given_classes(given: argparse.Namespace) -> list[TrafficClassSpec]:
    """All given classes, those of the file first."""
    return [*given.class_file, *given.classes]


def read_classes(path: Path) -> list[TrafficClassSpec]:
    """Read a TOML file of a table per class; raises FileError, OptionError for a name.

    A value is a text, a number, true for an option without a value, or a list of texts for a
    repeatable option.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(path, error.strerror or str(error)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FileError(path, f"is not TOML: {error}") from error
    if not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise FileError(path, "expected a table for each class, and some")
    return [
        TrafficClassSpec(
            name=name,
            settings=tuple(
                setting for key, value in table.items() for setting in _settings(path, key, value)
            ),
        )
        for name, table in tables.items()
    ]


def _settings(path: Path, key: str, value: object) -> list[Setting]:
    if value is True:
        return [(key, None)]
    values = value if isinstance(value, list) else [value]
    if any(isinstance(each, bool) or not isinstance(each, str | int | float) for each in values):
        raise FileError(path, f"{key}: expected a text, a number, true, or a list of texts")
    return [(key, f"{each}") for each in values]


AddOptions = Callable[[argparse.ArgumentParser], None]
"""Adds a class's options to a parser."""


def class_values(
    common: Mapping[str, Any], each: TrafficClassSpec, *, program: str, add_options: AddOptions
) -> dict[str, Any]:
    """A class's own values over those of `common`; only given ones are there.

    `program` is the command whose help lists a class's options. Raises LoadError.
    """
    own = _own_values(each, program, add_options)
    values = dict(common)
    for name in own:
        for other in _REPLACES.get(name, ()):
            values.pop(other, None)
    if "headers" in own:
        own["headers"] = [*values.get("headers", []), *own["headers"]]
    return {**values, **own}


def _own_values(each: TrafficClassSpec, program: str, add_options: AddOptions) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        argument_default=argparse.SUPPRESS, add_help=False, allow_abbrev=False, exit_on_error=False
    )
    add_options(parser)
    words = [f"--{key}" if value is None else f"--{key}={value}" for key, value in each.settings]
    try:
        own, unknown = parser.parse_known_args(words)
        if unknown:
            raise LoadError(f"{unknown[0]} is no option of a class")
    except (LoadError, argparse.ArgumentError) as error:
        more = f"({program} --help says more)"
        raise LoadError(f"{SPEC_OPTION} {each.name}: {error} {more}") from error
    return vars(own)


def current_spelling(words: Sequence[str]) -> list[str]:
    """Rewrite the old `--class NAME OPTION ...`, which extends to the next `--class`."""
    starts = [at for at, word in enumerate(words) if word.partition("=")[0] == OLD_OPTION]
    ends = [*starts[1:], len(words)]
    current = list(words[: starts[0]] if starts else words)
    for start, end in zip(starts, ends, strict=False):  # without a start there is one end more
        _, equals, name = words[start].partition("=")
        own = list(words[start + 1 : end])
        if not equals:
            name = own.pop(0) if own else ""
        current += [SPEC_OPTION, str(TrafficClassSpec(name=name, settings=_typed(own)))]
    return current


def _typed(words: Sequence[str]) -> tuple[Setting, ...]:
    settings: list[Setting] = []
    for word in words:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            settings.append((key, value if equals else None))
        elif settings and settings[-1][1] is None:
            settings[-1] = (settings[-1][0], word)
        else:
            raise LoadError(f"{OLD_OPTION}: {word} is no option of a class")
    return tuple(settings)
