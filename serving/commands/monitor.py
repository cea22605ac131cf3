"""`ultraserve monitor`: neuron-monitor's JSON of a running server, a line each period."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.errors import ConfigError
from serving.commands.control_connection import add_connection_arguments
from serving.commands.engine_snapshots import EngineSnapshots

if TYPE_CHECKING:
    from serving.telemetry.neuron_tools.monitor_config import MonitorConfig
    from serving.telemetry.neuron_tools.monitor_report import Reading

_DESCRIPTION = (
    "Print a running server as neuron-monitor reports a machine: a JSON object a line, each "
    "period, for what reads neuron-monitor's output."
)
_EPILOG = (
    "Periods between lines are of the wall's clock. What is said of cores, executions and devices "
    "is emulated, and so is the period in those groups; vcpu_usage, memory_info and "
    "neuron_runtime_vcpu_usage are this machine's real figures, in wall time. The cores of a chip "
    "share its work evenly. Latencies are those of the last 1,024 steps at most. error_summary "
    "counts lost and hung chips and failed HBM stacks as hardware, slow chips, cut links and "
    "pulled switch trays as transient. What only a real instance has is the word emulated. A "
    "training job on lent chips is an application of its own, lease-N. Without NEURON_PROCESS_TAG "
    "in its environment, a server's tag is its process's number."
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `monitor` command."""
    parser = subparsers.add_parser(
        "monitor",
        help="print neuron-monitor's JSON of a running server, a line each period",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--period", metavar="TIME", help="between lines, such as 500ms or 5s (default: 5s)"
    )
    parser.add_argument(
        "-c", "--config-file", type=Path, metavar="FILE", help="neuron-monitor's configuration"
    )
    parser.add_argument("--count", type=int, metavar="N", help="end after N lines (default: never)")
    add_connection_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print lines until the reader goes or N are out; returns 0.

    A server that goes away is an `error` in the lines, and asked again. Raises UltraServeError for
    a wrong argument, or a server that does not answer at first, or refuses.
    """
    config = _config(args)
    import msgspec

    from serving.telemetry.neuron_tools.monitor_report import MonitorReport

    with EngineSnapshots(args) as looks:
        report = MonitorReport(config, _reading(looks, first=True))
        left = sys.maxsize if args.count is None else args.count
        while left and (next_wall_s := report.next_wall_s) is not None:
            time.sleep(max(next_wall_s - time.monotonic(), 0.0))
            line = report.update(_reading(looks))
            print(msgspec.json.encode(line).decode(), flush=True)
            left -= 1
    return 0


def _config(args: argparse.Namespace) -> MonitorConfig:
    from serving.telemetry.neuron_tools.monitor_config import everything, parse_period, read_config

    if args.count is not None and args.count < 1:
        raise ConfigError("count", args.count, "at least 1")
    if args.config_file is not None:
        if args.period is not None:
            expected = "no --config-file with it, which has periods of its own"
            raise ConfigError("period", args.period, expected)
        return read_config(args.config_file)
    return everything() if args.period is None else everything(parse_period(args.period))


def _reading(looks: EngineSnapshots, *, first: bool = False) -> Reading:
    """The engine and this machine now; raises the first snapshot's error, later ones are words."""
    from serving.telemetry.neuron_tools.host_sample import host_sample
    from serving.telemetry.neuron_tools.monitor_report import Reading
    from serving.telemetry.neuron_tools.neuron_names import NOT_THERE

    look, error = (looks.look(), "") if first else looks.look_or_words()
    server = looks.processes()
    return Reading(
        host=host_sample(time.monotonic(), server),
        engine=look,
        error=error,
        pid=server.root.pid if server else 0,
        tag=server.tag if server else NOT_THERE,
    )
