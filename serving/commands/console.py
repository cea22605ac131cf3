"""`ultraserve console`: the address of a running server's page, with its key.

A private file redirects the browser to the address with the key: every user can read a browser's
command line, which names the file alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import time
import webbrowser
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import quote

from emulator.errors import ConfigError
from emulator.memory.core_claims import claims_directory, make_private_directory
from reporting.data_forms import json_text
from serving.access.control_key import find_console_port
from serving.commands.control_connection import (
    add_connection_arguments,
    connect,
    control_credential,
)
from serving.server.control.control_address import ControlAddress
from serving.wire import control_call


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `console` command."""
    parser = subparsers.add_parser(
        "console",
        help="print the address of a running server's live page",
        description="Print the address of a running server's live page, once the server has "
        "answered. The key is in the address's fragment, which a browser sends to nobody, but "
        "may keep in its history: whoever has the line can do what the key can.",
    )
    parser.add_argument(
        "--open",
        action="store_true",
        help="open it in this machine's browser too, by a file that only you can read and that is "
        f"removed after {OPENING_WALL_S:g} s: the key is on no command line; a browser in a box of "
        "its own (snap, Flatpak) does not find such files: open the printed address in it",
    )
    add_connection_arguments(parser)
    parser.add_argument(
        "--console-port",
        type=int,
        metavar="PORT",
        help="of the page (default: the one that this user's server on that address has noted, "
        "else the port after the control service's)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the address; returns 0. Raises UltraServeError."""
    address = ControlAddress.parse(args.address)
    key = control_credential(args, address)
    with connect(args) as client:
        client.call(control_call.DESCRIBE_SYSTEM)  # somebody is there, and the key is right
    assert key is not None, "a server without a key has answered"
    url = console_url(address.console(_port(args, address)), key, replica=args.replica)
    print(json_text({"url": url}) if args.json else url, flush=True)
    if args.open:
        _open(url)
    return 0


def _port(args: argparse.Namespace, address: ControlAddress) -> int | None:
    """The page's port; None where unknown."""
    port: int | None = args.console_port
    if port is None and address.is_loopback:
        return find_console_port(address.port, os.environ)
    return port


def _open(url: str) -> None:
    """Open this machine's browser, whose command line others can read; raises ConfigError."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C, so that the file does not stay
        signal.signal(number, signal.default_int_handler)
    with opening_page(url, os.environ) as path:
        if not webbrowser.open(path.as_uri()):
            raise ConfigError("open", "no browser", "one on this machine")
        time.sleep(OPENING_WALL_S)  # nobody tells us when the browser has read it


def console_url(address: ControlAddress, key: str, *, replica: int | None = None) -> str:
    """The page's address, of one replica or all; beyond loopback the port speaks TLS alone."""
    scheme = "http" if address.is_loopback else "https"
    shown = "" if replica is None else f"?replica={replica}"
    return f"{scheme}://{address}/{shown}#key={quote(key, safe='')}"


OPENING_WALL_S: Final = 20.0
"""*Assumed*: a browser that starts on a busy machine has read the file by then."""

_PAGE: Final = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={url}">
<title>UltraServe</title>
"""


@contextlib.contextmanager
def opening_page(url: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Path of a redirect to `url` in the block; raises ConfigError for a shared directory."""
    directory = claims_directory(environment)
    make_private_directory(directory)
    path = directory / f"console-{secrets.token_hex(4)}.html"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_PAGE.format(url=escape(url)))
        yield path
    finally:
        path.unlink(missing_ok=True)
