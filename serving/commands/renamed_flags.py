"""Flags under their old names, which work for one release with a warning."""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

RENAMED: Final[Mapping[str, str]] = {
    "--reserve": "--interactive-headroom",
    "--reading": "--assumption",
}


def with_new_names(arguments: Sequence[str]) -> list[str]:
    """The command line with today's names; a line on stderr for each old one."""
    renamed: list[str] = []
    for place, argument in enumerate(arguments):
        if argument == "--":
            return [*renamed, *arguments[place:]]
        name, equals, value = argument.partition("=")
        new = RENAMED.get(name.replace("_", "-"))
        if new is not None:
            print(f"warning: {name} is now {new}; the old name goes in 0.2", file=sys.stderr)
        renamed.append(argument if new is None else new + equals + value)
    return renamed
