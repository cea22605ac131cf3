"""Several traffic classes on one command line: `COMMON... --class NAME OWN... --class NAME OWN...`.

What stands before the first --class is the run's, and each class's unless it says otherwise.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadgen.commands.class_arguments import add_class_arguments
from loadgen.commands.one_line_parser import OneLineParser
from loadgen.errors import LoadError, OptionError

CLASS_OPTION: Final = "--class"
CLASS_HELP: Final = """\
traffic classes:
  --class NAME [OPTION ...]  may be given several times, after all options of the run: what follows
  is that class's own, of the groups workload, sessions, arrivals and requests. Options before the
  first --class are the run's, and the default of every class."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

# What a class says of its own takes these from what it would have shared.
_REPLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "rate": ("concurrency", "speedup"),
    "concurrency": ("rate", "speedup", "gaps", "burstiness"),
    "speedup": ("rate", "concurrency", "gaps", "burstiness"),
    "trace": ("input", "output"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassWords:
    """A class's name and its own words."""

    name: str
    words: tuple[str, ...]


def split_classes(words: Sequence[str]) -> tuple[list[str], list[ClassWords]]:
    """Part the words before the first --class from the classes; raises OptionError for a name.

    Everything after a --class belongs to it, until the next.
    """
    common: list[str] = []
    classes: list[ClassWords] = []
    current = common
    rest = iter(words)
    for word in rest:
        if word != CLASS_OPTION and not word.startswith(f"{CLASS_OPTION}="):
            current.append(word)
            continue
        name = next(rest, "") if word == CLASS_OPTION else word.partition("=")[2]
        if not _NAME.fullmatch(name):
            expected = "a name of letters, digits, dots, - and _"
            raise OptionError(option=CLASS_OPTION, value=name, expected=expected)
        if classes:
            classes[-1] = ClassWords(name=classes[-1].name, words=tuple(current))
        current = []
        classes.append(ClassWords(name=name, words=()))
    if classes:
        classes[-1] = ClassWords(name=classes[-1].name, words=tuple(current))
    return common, classes


def class_values(common: Mapping[str, Any], each: ClassWords, *, program: str) -> dict[str, Any]:
    """The values of a class: its own laid over those of `common`; only those given are there.

    `program` is the command whose help has the options of a class. Raises LoadError.
    """
    own = _own_values(each, program)
    values = dict(common)
    for name in own:
        for other in _REPLACES.get(name, ()):
            values.pop(other, None)
    if "headers" in own:
        own["headers"] = [*values.get("headers", []), *own["headers"]]
    return {**values, **own}


def _own_values(each: ClassWords, program: str) -> dict[str, Any]:
    parser = OneLineParser(
        prog=program,
        usage=argparse.SUPPRESS,
        argument_default=argparse.SUPPRESS,
        add_help=False,
    )
    add_class_arguments(parser)
    try:
        own, unknown = parser.parse_known_args(list(each.words))
        if unknown:
            parser.error(
                f"{unknown[0]} is no option of a class; what is for the whole run goes before the "
                f"first {CLASS_OPTION}"
            )
    except LoadError as error:
        raise LoadError(f"{CLASS_OPTION} {each.name}: {error}") from error
    return vars(own)
