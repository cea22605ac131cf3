"""`ultraserve rollback`: let a running server serve the weights before the present ones again."""

import argparse

from reporting.data_forms import json_text
from serving.commands.control_connection import add_change_arguments, connect
from serving.commands.publish import version_line
from serving.wire import control_call


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `rollback` command."""
    parser = subparsers.add_parser(
        "rollback",
        help="let a running server serve the weights before the present ones again",
        description="Let a running server serve the weights before the present ones again, as "
        "`ultraserve publish` does others.",
    )
    add_change_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask for it and print what the server says; returns 0.

    Raises:
        UltraServeError: there are none before, or a server that does not answer.
    """
    with connect(args) as client:
        report = client.call(control_call.ROLLBACK)
    print(json_text(report) if args.json else version_line(report))
    return 0
