"""Arguments and client of commands for a running server's control service."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from serving.server.control.control_address import ControlAddress
from startup.typed_options import add_options, option

if TYPE_CHECKING:  # what speaks gRPC is imported when a command runs
    from serving.server.control.control_client import ControlClient


TIMEOUT_S: Final = 5.0
"""Wall seconds for one answer; a server answers within 2."""

PATIENCE_S: Final = 30.0
"""Wall seconds for which a changing command asks for its outcome: chips take seconds to start."""

OUTCOMES: Final = (
    "3 not done: refused, or the server was not reached; 4 unknown: it may have been done, and the "
    "same command with --idempotency-key says whether"
)
"""Exit codes of a changing command, beside 0 and 2."""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """The server's control service, and what this client shows it."""

    GROUP = "connection"

    address: str = option(
        str(ControlAddress()), "the server's control service", metavar="HOST:PORT"
    )
    replica: int | None = option(
        None,
        "which of a service's replicas (`serve --replicas`) it is about, from 0 on",
        metavar="K",
    )
    timeout: float = option(TIMEOUT_S, "wall seconds to wait for an answer", metavar="S")
    control_key_file: Path | None = option(
        None,
        "the control service's key (default: ULTRASERVE_CONTROL_KEY, else the one that this user's "
        "server on that port has written)",
    )
    tls_ca: Path | None = option(
        None,
        "authority of the server's certificate, beyond loopback (default: the system's)",
        metavar="PEM",
    )
    tls_cert: Path | None = option(
        None, "this client's certificate, where the server asks", metavar="PEM"
    )
    tls_key: Path | None = option(
        None, "this client's private key, where the server asks", metavar="PEM"
    )


def add_change_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--idempotency-key`, and the arguments of every command that speaks to a server.

    The command asks for its outcome again, with its key, for `--timeout`.
    """
    parser.set_defaults(waits_for_outcome=True)
    parser.add_argument(
        "--idempotency-key",
        metavar="KEY",
        help="name of this change: asked for again with it, it is done at most once, and says how "
        "it ended (default: a new one, printed when the outcome is unknown)",
    )
    add_connection_arguments(parser, timeout_s=PATIENCE_S)


def add_connection_arguments(
    parser: argparse.ArgumentParser, *, timeout_s: float = TIMEOUT_S
) -> None:
    """Add `--address`, `--timeout`, `--json`, and the arguments of key and TLS."""
    add_connection_group(parser, timeout_s=timeout_s)
    parser.add_argument("--json", action="store_true", help="print JSON, in base units")


def add_connection_group(parser: argparse.ArgumentParser, *, timeout_s: float = TIMEOUT_S) -> None:
    """Add the same without `--json`."""
    add_options(parser, ConnectionOptions, defaults={"timeout": timeout_s})


def connect(args: argparse.Namespace) -> ControlClient:
    """An unconnected client by the arguments; raises ConfigError."""
    if not 0 < args.timeout < float("inf"):
        raise ConfigError("timeout", args.timeout, "a number above 0")
    if args.replica is not None and args.replica < 0:
        raise ConfigError("replica", args.replica, "at least 0")
    address = ControlAddress.parse(args.address)
    from serving.server.control.control_client import ControlClient, ControlTls

    key = control_credential(args, address)
    given = any((args.tls_ca, args.tls_cert, args.tls_key))
    tls = ControlTls(ca=args.tls_ca, certificate=args.tls_cert, key=args.tls_key) if given else None
    waits = getattr(args, "waits_for_outcome", False)
    return ControlClient(
        address,
        min(args.timeout, TIMEOUT_S) if waits else args.timeout,
        key=key,
        tls=tls,
        action_key=getattr(args, "idempotency_key", None),
        replica=args.replica,
        patience_s=args.timeout if waits else 0.0,
    )


def control_credential(args: argparse.Namespace, address: ControlAddress) -> str | None:
    """The key for the service at `address`, or None; raises ConfigError."""
    from serving.access.control_key import find_control_key

    # What a server of this machine has written is shown to this machine alone.
    return find_control_key(
        address.port,
        os.environ,
        key_file=args.control_key_file,
        on_this_machine=address.is_loopback,
    )
