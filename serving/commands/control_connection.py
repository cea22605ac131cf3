"""How commands reach a running server's control service: the arguments, and their client."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from emulator.errors import ConfigError
from serving.endpoints.control_address import ControlAddress

if TYPE_CHECKING:  # what speaks gRPC is imported when a command runs
    from serving.endpoints.control_client import ControlClient


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--address`, `--timeout` and `--json`."""
    parser.add_argument(
        "--address",
        default=str(ControlAddress()),
        metavar="HOST:PORT",
        help="the server's control service (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="wall seconds for one answer; calls wait for the engine's step (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, in base units")


def connect(args: argparse.Namespace) -> ControlClient:
    """The client that the arguments ask for; raises ConfigError. Nothing is sent yet."""
    if not 0 < args.timeout < float("inf"):
        raise ConfigError(field="timeout", value=args.timeout, expected="a number above 0")
    address = ControlAddress.parse(args.address)
    from serving.endpoints.control_client import ControlClient

    return ControlClient(address, args.timeout)
