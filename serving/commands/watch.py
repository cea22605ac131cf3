"""`ultraserve watch`: a running server's figures or events, until it ends or the reader goes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
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
    """Print until the end; returns 0. Raises UltraServeError."""
    if args.count is not None and args.count < 1:
        raise ConfigError("count", args.count, "at least 1")
    if args.after is not None and not (args.events and 0 <= args.after <= _NUMBER_MAX):
        raise ConfigError("after", args.after, "an event's, with --events")
    if args.of_run is not None and args.after is None:
        raise ConfigError("run", args.of_run, "--after N with it")
    if args.events and args.interval is not None:
        raise ConfigError("interval", args.interval, "no --events with it")
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


def _rate(field: str) -> Callable[[Telemetry, Telemetry | None], str]:
    """A total's growth since the snapshot before; `-` without one, or without time between."""

    def cell(now: Telemetry, before: Telemetry | None) -> str:
        if before is None or now.emulated_s <= before.emulated_s:
            return "-"
        grown = getattr(now, field) - getattr(before, field)
        return f"{grown / (now.emulated_s - before.emulated_s):,.0f}"

    return cell


def _kv_percent(now: Telemetry, _: Telemetry | None) -> str:
    return f"{100 * now.kv_blocks_used / now.kv_blocks:.1f}" if now.kv_blocks else "-"


_COLUMNS: Final[tuple[tuple[str, int, Callable[[Telemetry, Telemetry | None], str]], ...]] = (
    ("emulated s", 12, lambda now, _: f"{now.emulated_s:,.3f}"),
    ("steps", 10, lambda now, _: f"{now.steps:,}"),
    ("running", 8, lambda now, _: f"{now.requests_running:,}"),
    ("waiting", 8, lambda now, _: f"{now.requests_waiting:,}"),
    ("in tok/s", 10, _rate("prompt_tokens")),
    ("out tok/s", 10, _rate("output_tokens")),
    ("KV %", 6, _kv_percent),
    ("chips", 9, lambda now, _: f"{now.chips_up}/{now.chips}"),
    ("ranks", 9, lambda now, _: f"{now.ranks_up}/{now.ranks}"),
    ("chips W", 10, lambda now, _: f"{now.chip_watts:,.0f}"),
    ("site W", 10, lambda now, _: f"{now.facility_watts:,.0f}"),
    ("lag s", 8, lambda now, _: f"{now.lag_s:,.3f}"),
)
"""Heading, width, and cell of a snapshot after another."""


def header_line() -> str:
    """The headings of the figures."""
    return " ".join(f"{name:>{width}}" for name, width, _ in _COLUMNS)


def figure_line(before: Telemetry | None, now: Telemetry) -> str:
    """A snapshot's figures, rates since the one before, any standstill, and a stale one's age."""
    line = " ".join(f"{cell(now, before):>{width}}" for _, width, cell in _COLUMNS)
    if now.stall is not None:
        line += f"  stands still: {now.stall.wall_left_s:,.0f} s of wall time left"
    return f"{line}  {now.age_s:.1f} s old" if now.age_s else line


def event_line(event: MachineEvent, lost: int) -> str:
    """One event, with the number of forgotten ones before it."""
    at = datetime.fromtimestamp(event.unix_s, UTC).strftime("%H:%M:%S")
    missed = f"({lost:,} events before this one are forgotten)\n" if lost else ""
    return f"{missed}{event.number:>6} {at} {event.emulated_s:>12,.3f} s  {event.words}"
