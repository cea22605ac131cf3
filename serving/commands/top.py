"""`ultraserve top`: a running server's cores, memory, tokens and power on one screen."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from reporting.data_forms import json_text
from serving.commands.control_connection import add_connection_arguments
from serving.commands.engine_snapshots import EngineSnapshots

if TYPE_CHECKING:
    from serving.telemetry.neuron_tools.host_sample import HostSample
    from serving.telemetry.neuron_tools.top_figures import HostFigures, TopFigures

_INTERVAL_S: Final = 1.0
_INTERVAL_S_MIN: Final = 0.25
_INTERVAL_S_MAX: Final = 3600.0
_HOST_S: Final = 2.0  # reading the memory of 150 processes takes a while
_HOST_ONCE_S: Final = 0.5  # vCPUs have usage over a time, not at one

_DESCRIPTION = (
    "Show a running server's cores, memory, tokens and power, after neuron-top. Keys: 1-4, a and d "
    "for tabs, F for TFLOPS, m for other measures, x to open the memory tree, h for help, q to "
    "quit. Where the output is no terminal, or with --once, print it once."
)
_EPILOG = (
    "Cores, memory, tokens and power are emulated: means of the last emulated seconds; the cores "
    "of a chip share its work evenly. vCPUs and host memory are this machine's, real. NO_COLOR=1 "
    "leaves colours away; figures and letters say the same."
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `top` command."""
    parser = subparsers.add_parser(
        "top",
        help="show a running server's cores, memory, tokens and power, live",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("--once", action="store_true", help="print it once and end")
    parser.add_argument(
        "--interval",
        type=float,
        default=_INTERVAL_S,
        metavar="S",
        help="wall seconds between looks (default: %(default)g)",
    )
    add_connection_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show it until the user leaves, or once; returns 0. Raises UltraServeError."""
    if not _INTERVAL_S_MIN <= args.interval <= _INTERVAL_S_MAX:
        expected = f"{_INTERVAL_S_MIN:g} to {_INTERVAL_S_MAX:g} seconds"
        raise ConfigError("interval", args.interval, expected)
    once = args.once or args.json or not _is_screen()
    with EngineSnapshots(args) as looks:
        figures = _Figures(looks)
        if once:
            time.sleep(_HOST_ONCE_S)
            _print_once(figures.now(), args)
            return 0
        return _watch(figures, args, str(looks.address))


class _Figures:
    """Figures of successive snapshots, the host's now and then."""

    def __init__(self, looks: EngineSnapshots) -> None:
        self._looks = looks
        self._sample = self._sampled()
        self._host: HostFigures | None = None

    def now(self) -> TopFigures:
        """The figures of a new snapshot; raises as EngineSnapshots.look."""
        from serving.telemetry.neuron_tools.top_figures import host_figures, top_figures

        look = self._looks.look()
        since_s = time.monotonic() - self._sample.wall_s
        if since_s >= (_HOST_ONCE_S if self._host is None else _HOST_S):
            sample = self._sampled()
            self._host, self._sample = host_figures(self._sample, sample), sample
        return top_figures(look, self._host)

    def _sampled(self) -> HostSample:
        from serving.telemetry.neuron_tools.host_sample import host_sample

        return host_sample(time.monotonic(), self._looks.processes())


def _is_screen() -> bool:
    ends = (sys.stdin, sys.stdout, sys.stderr)  # the screen is drawn on the last
    return all(end is not None and end.isatty() for end in ends) and os.environ.get(
        "TERM", ""
    ) not in ("", "dumb")


def _print_once(figures: TopFigures, args: argparse.Namespace) -> None:
    if args.json:
        print(json_text(figures))
        return
    from rich.console import Console

    from serving.telemetry.neuron_tools.heat_grid import MEASURES
    from serving.telemetry.neuron_tools.top_panels import whole

    console = Console(highlight=False, soft_wrap=True)
    for line in whole(figures, MEASURES[0], args.address):
        console.print(line)


def _watch(figures: _Figures, args: argparse.Namespace, address: str) -> int:
    from serving.server.control.control_client import ServerUnreachable
    from serving.telemetry.neuron_tools.top_screen import Lost, TopScreen

    def look() -> TopFigures:
        try:
            return figures.now()
        except ServerUnreachable as error:
            raise Lost(str(error)) from error

    screen = TopScreen(look, first=figures.now(), address=address, interval_s=args.interval)
    failure = screen.run()
    if failure is not None:
        raise failure
    return screen.return_code or 0
