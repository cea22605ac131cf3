"""`ultraserve watch`: what a running server does, line by line, until it ends or nobody reads."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from serving.commands.control_connection import add_connection_arguments, connect

if TYPE_CHECKING:
    from serving.server.control.control_client import ControlClient
    from serving.wire.telemetry import MachineEvent, Telemetry

_INTERVAL_S: Final = 1.0
_NUMBER_MAX: Final = 2**63 - 1  # what the wire carries
_HEADER_EVERY: Final = 20

_COLUMNS: Final = (
    ("emulated s", 12),
    ("steps", 10),
    ("running", 8),
    ("waiting", 8),
    ("in tok/s", 10),
    ("out tok/s", 10),
    ("KV %", 6),
    ("chips", 9),
    ("ranks", 9),
    ("chips W", 10),
    ("site W", 10),
    ("lag s", 8),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `watch` command."""
    parser = subparsers.add_parser(
        "watch",
        help="print what a running server does, as it happens",
        description="Print what a running server does, as it happens: a line of figures each so "
        "often, rates per emulated second; or what happens to its chips, weights and admission.",
    )
    parser.add_argument("--events", action="store_true", help="print what happens, not figures")
    parser.add_argument(
        "--after",
        type=int,
        metavar="N",
        help="with --events: begin after event N, 0 for all that the server remembers (default: "
        "what comes from now on)",
    )
    parser.add_argument(
        "--run",
        dest="of_run",
        metavar="ID",
        help="with --after: the server's run that N is of, as --json shows it; a server that has "
        "started again since refuses (default: whichever runs)",
    )
    parser.add_argument(
        "--interval",
        type=float,
        metavar="S",
        help=f"wall seconds between two lines of figures, 0.1 to 60 (default: {_INTERVAL_S:g})",
    )
    parser.add_argument("--count", type=int, metavar="N", help="end after N lines")
    add_connection_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print until there is nothing more; returns 0. Raises UltraServeError."""
    if args.count is not None and args.count < 1:
        raise ConfigError(field="count", value=args.count, expected="at least 1")
    if args.after is not None and not (args.events and 0 <= args.after <= _NUMBER_MAX):
        raise ConfigError(field="after", value=args.after, expected="an event's, with --events")
    if args.of_run is not None and args.after is None:
        raise ConfigError(field="run", value=args.of_run, expected="--after N with it")
    if args.events and args.interval is not None:
        raise ConfigError(field="interval", value=args.interval, expected="no --events with it")
    with connect(args) as client:
        lines = _event_lines(client, args) if args.events else _figure_lines(client, args)
        for line in islice(lines, args.count):
            print(line, flush=True)
    return 0


def _event_lines(client: ControlClient, args: argparse.Namespace) -> Iterator[str]:
    for event, lost in client.events(args.after, run=args.of_run):
        if args.json:
            yield _json_line(event, lost=lost, run=client.run)
        else:
            yield event_line(event, lost)


def _figure_lines(client: ControlClient, args: argparse.Namespace) -> Iterator[str]:
    interval_s = _INTERVAL_S if args.interval is None else args.interval
    before: Telemetry | None = None
    for number, (look, skipped) in enumerate(client.telemetry(interval_s)):
        if args.json:
            yield _json_line(look, skipped=skipped)
        else:
            head = "" if number % _HEADER_EVERY else f"{header_line()}\n"
            yield f"{head}{figure_line(before, look)}"
        before = look


def _json_line(value: object, **more: object) -> str:
    """One line of JSON: the value's own fields, and `more`."""
    import msgspec

    return msgspec.json.encode({**msgspec.to_builtins(value), **more}).decode()


def header_line() -> str:
    """What stands above the figures."""
    return " ".join(f"{name:>{width}}" for name, width in _COLUMNS)


def figure_line(before: Telemetry | None, look: Telemetry) -> str:
    """One look; rates since the one before, `-` where there is none or no time went by.

    Behind it stands for how long nothing is computed yet, and how old an old look is.
    """
    passed_s = 0.0 if before is None else look.emulated_s - before.emulated_s
    rates = ["-", "-"]
    if before is not None and passed_s > 0:
        rates = [
            f"{(now - then) / passed_s:,.0f}"
            for now, then in (
                (look.prompt_tokens, before.prompt_tokens),
                (look.output_tokens, before.output_tokens),
            )
        ]
    cells = (
        f"{look.emulated_s:,.3f}",
        f"{look.steps:,}",
        f"{look.requests_running:,}",
        f"{look.requests_waiting:,}",
        *rates,
        f"{100 * look.kv_blocks_used / look.kv_blocks:.1f}" if look.kv_blocks else "-",
        f"{look.chips_up}/{look.chips}",
        f"{look.ranks_up}/{look.ranks}",
        f"{look.chip_watts:,.0f}",
        f"{look.facility_watts:,.0f}",
        f"{look.lag_s:,.3f}",
    )
    line = " ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True))
    if look.stall is not None:
        line += f"  stands still: {look.stall.wall_left_s:,.0f} s of wall time left"
    return f"{line}  {look.age_s:.1f} s old" if look.age_s else line


def event_line(event: MachineEvent, lost: int) -> str:
    """One event, with how many before it the server has forgotten."""
    at = datetime.fromtimestamp(event.unix_s, UTC).strftime("%H:%M:%S")
    missed = f"({lost:,} events before this one are forgotten)\n" if lost else ""
    return f"{missed}{event.number:>6} {at} {event.emulated_s:>12,.3f} s  {event.words}"
