"""`ultraserve key`: make, list and revoke the keys of a file that `serve --api-keys` reads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from emulator.errors import ConfigError
from reporting.data_forms import json_text
from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from serving.access.key_file import read_key_file
from serving.access.key_file_edit import add_key, revoke_key
from serving.access.secret import draw_secret, hash_of
from serving.access.stored_key import Scope, StoredKey, check_name
from serving.policy.admission.work import Client, KeyLimits, WorkClass

_LIMITS = (
    ("--requests-per-minute", "requests that begin in an emulated minute"),
    ("--tokens-per-minute", "tokens of prompts and answers in an emulated minute"),
    ("--concurrent", "sequences at a time: prompts times n"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `key` command with its actions."""
    parser = subparsers.add_parser(
        "key",
        help="make, list and revoke clients' keys",
        description="Keys of clients, in a file for `ultraserve serve --api-keys`. A running "
        "server takes up changes by itself within a second, and at SIGHUP.",
        epilog="Example: ultraserve key create alice --file keys.toml --requests-per-minute 600",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser(
        "create",
        help="make a key, and print its secret this once",
        description="Make a key. Its secret goes to stdout, and is kept nowhere.",
    )
    _add_common(create, named=True)
    create.add_argument(
        "--scope",
        action="append",
        choices=tuple(Scope),
        help=f"what it opens; may be given twice (default: {Scope.INFERENCE})",
    )
    create.add_argument(
        "--class",
        dest="work_class",
        choices=tuple(WorkClass),
        default=WorkClass.INTERACTIVE,
        help="of requests that do not say theirs (default: %(default)s)",
    )
    for flag, text in _LIMITS:
        create.add_argument(flag, type=int, metavar="N", help=f"{text} (default: no limit)")
    create.add_argument(
        "--expires", metavar="TIME", help="such as 2027-01-31T12:00:00Z (default: never)"
    )
    create.set_defaults(run=run_create)
    listing = actions.add_parser("list", help="show the keys", description="Show the keys.")
    _add_common(listing, named=False)
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=run_list)
    revoke = actions.add_parser(
        "revoke",
        help="take a key out",
        description="Take a key out. Requests of its that run go on to their end.",
    )
    _add_common(revoke, named=True)
    revoke.set_defaults(run=run_revoke)


def _add_common(parser: argparse.ArgumentParser, *, named: bool) -> None:
    if named:
        parser.add_argument("name", metavar="NAME", help="whose key it is")
    parser.add_argument("--file", type=Path, required=True, metavar="FILE", help="of the keys")


def run_create(args: argparse.Namespace) -> int:
    """Add a key and print its secret; returns 0. Raises ConfigError: nothing was changed."""
    secret = draw_secret()
    limits = KeyLimits(
        requests_per_minute=args.requests_per_minute,
        tokens_per_minute=args.tokens_per_minute,
        concurrent=args.concurrent,
    )
    client = Client(
        name=check_name(args.name), work_class=WorkClass(args.work_class), limits=limits
    )
    key = StoredKey(
        client=client,
        hash=hash_of(secret),
        scopes=frozenset(Scope(scope) for scope in args.scope or (Scope.INFERENCE,)),
        expires=None if args.expires is None else _time(args.expires),
    )
    add_key(args.file, key)
    print(secret)
    print("this key is shown once: only its hash is kept", file=sys.stderr)
    return 0


def run_list(args: argparse.Namespace) -> int:
    """Print the keys, without hashes; returns 0. Raises ConfigError."""
    keys, _ = read_key_file(args.file)
    print(json_text([_row(key) for key in keys]) if args.json else "\n".join(_lines(keys)))
    return 0


def run_revoke(args: argparse.Namespace) -> int:
    """Take a key out; returns 0. Raises ConfigError: nothing was changed."""
    revoke_key(args.file, args.name)
    print(f"{args.name} is revoked", file=sys.stderr)
    return 0


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError("expires", text, "a time such as 2027-01-31T12:00:00Z") from error


def _row(key: StoredKey) -> dict[str, object]:
    limits = key.client.limits
    return {
        "name": key.client.name,
        "scopes": sorted(key.scopes),
        "class": key.client.work_class,
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
        "concurrent": limits.concurrent,
        "expires": None if key.expires is None else key.expires.isoformat(),
        "expired": key.is_expired(datetime.now(UTC)),
    }


def _lines(keys: Sequence[StoredKey]) -> list[str]:
    if not keys:
        return ["no keys"]
    now = datetime.now(UTC)

    def expires(key: StoredKey) -> str:
        words = "never" if key.expires is None else key.expires.isoformat(timespec="minutes")
        return f"{words} (past)" if key.is_expired(now) else words

    columns: tuple[Column[StoredKey], ...] = (
        Column("name", lambda key: key.client.name, align="left"),
        Column("opens", lambda key: " ".join(sorted(key.scopes)), align="left"),
        Column("class", lambda key: key.client.work_class, align="left"),
        Column("requests/min", lambda key: key.client.limits.requests_per_minute, ","),
        Column("tokens/min", lambda key: key.client.limits.tokens_per_minute, ","),
        Column("concurrent", lambda key: key.client.limits.concurrent, ","),
        Column("expires", expires, align="left"),
    )
    return table_lines(table_of(columns, keys))
