"""`ultraserve lend`: lend chips of a running server out to training, with nothing lost."""

from __future__ import annotations

import argparse

from serving.commands.control_connection import OUTCOMES, connect
from serving.commands.drain import add_arguments, checked_grace_s, print_report
from serving.wire import control_call


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `lend` command."""
    parser = subparsers.add_parser(
        "lend",
        help="lend chips of a running server out to training",
        description="Lend chips of a running server out to training: a training state of the "
        "served model has to fit their HBM, or it is refused with the figures. Their requests end "
        "or go on elsewhere, their experts move to chips that stay. With --day-night the training "
        "job takes them. `ultraserve resume` takes them back; `ultraserve drain` takes chips out "
        "for maintenance.",
        epilog="Example: ultraserve lend --chips 2,3. Exit codes: 0 done, or it could be; 2 a "
        f"wrong argument; {OUTCOMES}.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


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
            purpose="training",
        )
    print_report(report, args)
    return 0
