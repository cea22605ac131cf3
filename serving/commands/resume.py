"""`ultraserve resume`: take lent chips of a running server back into service."""

import argparse

from reporting.data_forms import json_text
from serving.commands.control_connection import (
    OUTCOMES,
    add_change_arguments,
    connect,
)
from serving.commands.drain import report_line
from serving.wire import control_call


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `resume` command."""
    parser = subparsers.add_parser(
        "resume",
        help="take chips that were drained or lent back into service",
        description="Take chips that were drained or lent back into service; a drain that is "
        "under way is called off. (vLLM's own resume is `ultraserve engine resume`.)",
        epilog=f"Exit codes: 0 done; 2 a wrong argument; {OUTCOMES}.",
    )
    parser.add_argument("lease", type=lease_number, help="the number that `drain` or `lend` gave")
    add_change_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask for it and print what the server says; returns 0.

    Raises:
        UltraServeError: no such lease, or a server that does not answer.
    """
    with connect(args) as client:
        report = client.call(control_call.RESUME, lease=args.lease)
    print(json_text(report) if args.json else report_line(report))
    return 0


def lease_number(text: str) -> int:
    """A lease's number from 1 on; for argparse."""
    if not text.isdecimal() or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"expected a lease's number, not {text!r}")
    return int(text)
