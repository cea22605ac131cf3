"""An argument parser with errors of one line."""

import argparse
import sys
from functools import partial
from typing import Final, NoReturn, TypeAlias

from loadgen.commands.standard_output import printing
from loadgen.errors import LoadError

WIDTH: Final = 100
"""Columns of the help, as wide as its formulas."""


class OneLineParser(argparse.ArgumentParser):
    """Raises LoadError instead of printing its usage; takes no abbreviations."""

    def __init__(self, **settings: object) -> None:
        settings.setdefault("allow_abbrev", False)
        form = partial(argparse.RawDescriptionHelpFormatter, width=WIDTH)
        settings.setdefault("formatter_class", form)
        super().__init__(**settings)  # type: ignore[arg-type]  # as argparse's own

    def print_help(self, file: object = None) -> None:  # noqa: ARG002 - as argparse's own
        """Print the help on standard output; raises as `printing`."""
        with printing():
            sys.stdout.write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Raise LoadError, naming where to read more."""
        raise LoadError(f"{message} ({self.prog} --help says more)")


Commands: TypeAlias = "argparse._SubParsersAction[OneLineParser]"
"""The object to which a command adds its parser."""
