"""`ultraserve drain`: take chips of a running server out for maintenance, with nothing lost."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from reporting.data_forms import json_text
from serving.commands.control_connection import (
    OUTCOMES,
    add_change_arguments,
    connect,
)
from serving.wire import control_call

if TYPE_CHECKING:
    from serving.wire.control_call import LeaseReport

GRACE_S: Final = 2.0
"""Emulated; a short answer's time."""

_CHIP_MAX: Final = 2**31 - 1  # what the wire carries


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `drain` command."""
    parser = subparsers.add_parser(
        "drain",
        help="take chips of a running server out of service for maintenance",
        description="Take chips of a running server out of service for maintenance: their requests "
        "end or go on elsewhere, their experts move to chips that stay. `ultraserve resume` takes "
        "them back; `ultraserve lend` lends chips out to training.",
        epilog="Example: ultraserve drain --chips 2,3. Exit codes: 0 done, or it could be; 2 a "
        f"wrong argument; {OUTCOMES}.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which chips, how gently, and where; `lend` has the same."""
    parser.add_argument(
        "--chips",
        type=chip_list,
        required=True,
        metavar="LIST",
        help="chips of the partition, whole ranks: 2,3 or 8-15",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=GRACE_S,
        metavar="S",
        help="emulated seconds that running requests have to end (default: %(default)g)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only ask what would happen")
    add_change_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Ask for it and print what the server says; returns 0.

    Raises:
        UltraServeError: chips that cannot leave, a server that does not answer.
    """
    grace_s = checked_grace_s(args)
    with connect(args) as client:
        report = client.call(
            control_call.DRAIN,
            chips=args.chips,
            grace_s=grace_s,
            dry_run=args.dry_run,
            purpose="maintenance",
        )
    print_report(report, args)
    return 0


def checked_grace_s(args: argparse.Namespace) -> float:
    """The grace time that is asked for; raises ConfigError for none."""
    grace_s: float = args.grace
    if not 0 <= grace_s < float("inf"):
        raise ConfigError(field="grace", value=grace_s, expected="at least 0 seconds")
    return grace_s


def print_report(report: LeaseReport, args: argparse.Namespace) -> None:
    """Print what the server said to a drain or a loan."""
    dry = "dry run: " if args.dry_run else ""
    print(json_text(report) if args.json else f"{dry}{report_line(report)}")


def report_line(report: LeaseReport) -> str:
    """What the server said to a drain or a resume."""
    if report.lease is None:
        return report.reason
    lease = report.lease
    chips = ", ".join(map(str, lease.chips))
    return f"lease {lease.number}, chips {chips}: {lease.phase}: {report.reason}"


def chip_list(text: str) -> tuple[int, ...]:
    """Read `2,3` or `8-15`, each chip once; for argparse."""
    chips: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"expected chips such as 2,3 or 8-15, not {text!r}")
        begin, end = int(first), int(last if dash else first)
        if not begin <= end <= min(_CHIP_MAX, begin + 10_000):
            raise argparse.ArgumentTypeError(f"expected chips that rise, not {part!r}")
        chips.extend(range(begin, end + 1))
    if len(set(chips)) < len(chips):
        raise argparse.ArgumentTypeError(f"expected each chip once, not {text!r}")
    return tuple(chips)
