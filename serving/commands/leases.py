"""`ultraserve drain`, `lend`, `resume`: chips of a running server leave service and come back."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from reporting.data_forms import json_text
from serving.commands.control_connection import OUTCOMES, add_change_arguments, connect
from serving.wire import control_call

if TYPE_CHECKING:
    from serving.wire.control_call import LeaseReport

GRACE_S: Final = 2.0
"""Emulated; a short answer takes as long."""

_CHIP_MAX: Final = 2**31 - 1  # what the wire carries

_LEAVING: Final = (
    (
        "drain",
        "maintenance",
        "take chips of a running server out of service for maintenance",
        "Take chips of a running server out of service for maintenance: their requests end or go "
        "on elsewhere, their experts move to chips that stay. `ultraserve resume` takes them back; "
        "`ultraserve lend` lends chips out to training.",
    ),
    (
        "lend",
        "training",
        "lend chips of a running server out to training",
        "Lend chips of a running server out to training: a training state of the served model has "
        "to fit their HBM, or it is refused with the figures. Their requests end or go on "
        "elsewhere, their experts move to chips that stay. With --day-night the training job takes "
        "them. `ultraserve resume` takes them back; `ultraserve drain` takes chips out for "
        "maintenance.",
    ),
)
"""Commands that take chips out: name, purpose, help, description."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `drain`, `lend` and `resume` commands."""
    for name, purpose, what, description in _LEAVING:
        parser = subparsers.add_parser(
            name,
            help=what,
            description=description,
            epilog=f"Example: ultraserve {name} --chips 2,3. Exit codes: 0 done, or it could be; 2 "
            f"a wrong argument; {OUTCOMES}.",
        )
        _add_leaving_arguments(parser)
        parser.set_defaults(run=run, purpose=purpose)
    parser = subparsers.add_parser(
        "resume",
        help="take chips that were drained or lent back into service",
        description="Take chips that were drained or lent back into service; a drain that is "
        "under way is called off. (vLLM's own resume is `ultraserve engine resume`.)",
        epilog=f"Exit codes: 0 done; 2 a wrong argument; {OUTCOMES}.",
    )
    parser.add_argument("lease", type=lease_number, help="the number that `drain` or `lend` gave")
    add_change_arguments(parser)
    parser.set_defaults(run=run_resume)


def _add_leaving_arguments(parser: argparse.ArgumentParser) -> None:
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
    """Drain or lend the chips and print the answer; returns 0. Raises UltraServeError."""
    if not 0 <= args.grace < float("inf"):
        raise ConfigError("grace", args.grace, "at least 0 seconds")
    with connect(args) as client:
        report = client.call(
            control_call.DRAIN,
            chips=args.chips,
            grace_s=args.grace,
            dry_run=args.dry_run,
            purpose=args.purpose,
        )
    dry = "dry run: " if args.dry_run else ""
    print(json_text(report) if args.json else f"{dry}{report_line(report)}")
    return 0


def run_resume(args: argparse.Namespace) -> int:
    """Take the chips back and print the answer; returns 0. Raises UltraServeError."""
    with connect(args) as client:
        report = client.call(control_call.RESUME, lease=args.lease)
    print(json_text(report) if args.json else report_line(report))
    return 0


def report_line(report: LeaseReport) -> str:
    """The server's answer: lease, chips, phase, reason."""
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


def lease_number(text: str) -> int:
    """A lease's number from 1 on; for argparse."""
    if not text.isdecimal() or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"expected a lease's number, not {text!r}")
    return int(text)
