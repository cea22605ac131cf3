"""`ultraserve publish` and `rollback`: change a running server's weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.errors import ConfigError
from reporting.data_forms import json_text
from serving.commands.control_connection import add_change_arguments, connect
from serving.wire import control_call

if TYPE_CHECKING:
    from serving.wire.control_call import VersionReport


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `publish` and `rollback` commands."""
    publish = subparsers.add_parser(
        "publish",
        help="let a running server serve other weights, with nothing lost",
        description="Let a running server serve other weights of the same architecture, block by "
        "block of chips; requests end with the weights that they began with. `ultraserve "
        "rollback` goes back.",
    )
    publish.add_argument("weights", metavar="DIR", help="checkpoint on the server's machine")
    publish.add_argument("--note", default="", help="one line that stands beside the version")
    rollback = subparsers.add_parser(
        "rollback",
        help="let a running server serve the weights before the present ones again",
        description="Let a running server serve the weights before the present ones again, as "
        "`ultraserve publish` does others.",
    )
    for parser in (publish, rollback):
        add_change_arguments(parser)
        parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask for the weights and print the answer; returns 0. Raises UltraServeError."""
    with connect(args) as client:
        if args.command == "rollback":
            report = client.call(control_call.ROLLBACK)
        else:
            directory = checkpoint(args.weights)
            report = client.call(control_call.PUBLISH, weights_dir=str(directory), note=args.note)
    print(json_text(report) if args.json else version_line(report))
    return 0


def checkpoint(text: str) -> Path:
    """The directory, absolute; raises ConfigError where there is none."""
    directory = Path(text).expanduser().absolute()
    if not directory.is_dir():  # the server, on this machine, would not find it either
        raise ConfigError("weights", text, "a checkpoint directory")
    return directory


def version_line(report: VersionReport) -> str:
    """The version that is served, or will be."""
    waiting = "every block serves it"
    if report.waiting_blocks:
        waiting = f"{report.waiting_blocks} blocks of chips have yet to read it"
    return f"version {report.version} ({report.weights}): {waiting}"
