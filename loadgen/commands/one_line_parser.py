"""A parser of arguments whose refusals are one line, as are all of this tool's."""

import argparse
from typing import NoReturn

from loadgen.errors import LoadError


class OneLineParser(argparse.ArgumentParser):
    """Raises LoadError instead of printing its usage; takes no abbreviations."""

    def __init__(self, **settings: object) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)  # type: ignore[arg-type]  # as argparse's own

    def error(self, message: str) -> NoReturn:
        """Refuse, naming where to read more."""
        raise LoadError(f"{message} ({self.prog} --help says more)")
