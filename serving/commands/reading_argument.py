"""The flag with which a user reads sources that disagree about a machine in another way."""

import argparse


def add_reading_argument(
    parser: "argparse._ActionsContainer", *, default: list[str] | None
) -> None:
    """Add --reading, which may be repeated; `default` is what `args.reading` is without it."""
    parser.add_argument(
        "--reading",
        action="append",
        default=default,
        metavar="SWITCH=READING",
        help="where sources disagree about a machine, read them in another way (repeatable; "
        "`ultraserve describe NAME` lists the switches)",
    )
