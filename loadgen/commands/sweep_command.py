"""`ultraserve-loadgen sweep`: runs over rising loads, the knee, and an SLO's highest load."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import uvloop

from loadgen.commands import exit_codes
from loadgen.commands.one_line_parser import Commands, OneLineParser
from loadgen.commands.recorded_command import recorded_command, recorded_command_of_point
from loadgen.commands.report_files import add_report_arguments, check_report_files, hand_over
from loadgen.commands.run_arguments import (
    KEY_VARIABLE,
    add_class_arguments,
    add_server_arguments,
    files_read,
    run_options,
)
from loadgen.commands.run_command import watched_run
from loadgen.errors import LoadError, OptionError
from loadgen.measures.definitions import help_text
from loadgen.option_values import above_zero
from loadgen.records.run_record import RunRecord
from loadgen.records.sweep_record import NAME as SWEEP_NAME
from loadgen.records.sweep_record import Axis, SweepRecord, write_sweep
from loadgen.reports.sweep_report import SweepReport
from loadgen.runs.options import RunOptions
from loadgen.sweeps.load_grid import FORMS, load_words, loads_up_to, parse_loads
from loadgen.sweeps.options import SweepOptions
from loadgen.sweeps.sweep import run_sweep
from loadgen.workloads.drawn_defaults import REQUESTS
from loadgen.workloads.traffic_class_spec import (
    TrafficClassSpec,
    add_traffic_class_arguments,
    given_classes,
)
from startup.typed_options import add_options

NAME: Final = "sweep"

METHOD: Final = """\
method:
  Loads rise until the server is over-saturated: with a rate, until the backlog (due and not ended)
  grows beyond chance, or more than 1 % of the requests fail; with a concurrency, until two steps
  in a row bring less than a tenth of their load in throughput (and an --slo is no longer kept).
  Every run has a seed of its own.
  knee: the load at which throughput / mean E2E is largest (Kleinrock's power).
  SLO: a bound is kept where Wilson's interval of the share of requests within it lies at or above
  its percentile, and missed where it lies below; requests that wait in one queue count as fewer.
  The search halves the ratio between what seems to be kept and what does not, then runs the two
  ends again, each time with twice the requests, until they are told apart or --repeats are done.
  What it names was kept with 95 % confidence, all repeats included.
  Pareto: loads that no other beats in interactivity and in tokens/s/MW, or tokens/s/chip."""
EXAMPLES: Final = """\
examples:
  ultraserve-loadgen sweep --rates 1,2,4,8 --requests 300
  ultraserve-loadgen sweep --concurrencies 1-256x2 --input 512 --output 128 --duration 30s
  ultraserve-loadgen sweep --max-rate 64 --slo ttft=200ms,tpot=20ms@p99 --requests 1000"""


def add(commands: Commands) -> OneLineParser:
    """Add the command's parser."""
    parser = commands.add_parser(
        NAME,
        description="Run the same workload at rising loads, and report what they have in common.",
        usage="ultraserve-loadgen sweep (--rates R,... | --concurrencies N,... | --max-rate R)\n"
        "                                [OPTION ...]",
        epilog="\n\n".join([METHOD, EXAMPLES, help_text(), exit_codes.WORDS]),
        argument_default=argparse.SUPPRESS,
    )
    _add_loads(parser.add_argument_group("loads"))
    add_server_arguments(parser)
    add_class_arguments(parser, loads=False)
    add_traffic_class_arguments(parser)
    add_options(parser, RunOptions, without=("results",))
    add_report_arguments(parser, requests=False)
    parser.add_argument("--quiet", action="store_true", default=False, help="show no progress")
    return parser


def _add_loads(group: argparse._ArgumentGroup) -> None:
    loads = group.add_mutually_exclusive_group(required=True)
    loads.add_argument("--rates", default=None, metavar="R,...", help=f"sessions per s: {FORMS}")
    loads.add_argument(
        "--concurrencies", default=None, metavar="N,...", help=f"sessions in flight: {FORMS}"
    )
    loads.add_argument(
        "--max-rate",
        type=above_zero,
        default=None,
        metavar="R",
        help="rates that double from R / 64 to R",
    )
    group.add_argument(
        "--vary",
        default=None,
        metavar="CLASS",
        help="the class whose load it is, where there are several; the others stay as they are",
    )
    add_options(group, SweepOptions)
    group.add_argument(
        "--dir",
        dest="folder",
        type=Path,
        default=None,
        metavar="FOLDER",
        help="where each run's results and sweep.json go (default: sweep-DATE-TIME, made here)",
    )


def handle(given: argparse.Namespace, *, parser: OneLineParser, words: Sequence[str]) -> int:
    """Sweep and report; returns the exit code. Raises LoadError, OutputClosed."""
    options = sweep_options(given, parser=parser)
    record_path = options.folder / SWEEP_NAME
    check_report_files(given, others=[("the sweep's", record_path), *files_read(options.run)])
    _make_folder(options.folder)
    key = os.environ.get(KEY_VARIABLE, "")
    classes = given_classes(given)
    sweep = uvloop.run(_watched(options, words=words, classes=classes, key=key, quiet=given.quiet))
    write_sweep(record_path, sweep)
    hand_over(given, SweepReport(sweep=sweep))
    if sweep.interrupted:
        return exit_codes.INTERRUPTED
    return exit_codes.REQUESTS_FAILED if sweep.problem else exit_codes.OK


def sweep_options(given: argparse.Namespace, *, parser: OneLineParser) -> SweepOptions:
    """Make the options of a sweep; raises LoadError."""
    classes = given_classes(given)
    axis: Axis = "rate" if given.concurrencies is None else "concurrency"
    if given.rates is not None:
        loads = parse_loads(given.rates, axis=axis, option="--rates")
    elif given.concurrencies is not None:
        loads = parse_loads(given.concurrencies, axis=axis, option="--concurrencies")
    else:
        loads = loads_up_to(given.max_rate)
    vary = given.vary or (classes[0].name if len(classes) == 1 else None)
    if vary is None and len(classes) > 1:
        expected = f"one of the classes {', '.join(each.name for each in classes)}"
        raise LoadError(f"with several classes a sweep needs --vary: {expected}")
    # The varied class needs a load to be checked with; each run replaces it.
    load = (axis, load_words(loads[0]))
    values = vars(given)
    if not classes:
        values[axis] = load[1]
    if {"sessions", "duration_s", "trace"}.isdisjoint(values):
        values["sessions"] = REQUESTS
    loaded = [
        replace(each, settings=(load, *each.settings)) if each.name == vary else each
        for each in classes
    ]
    made = run_options(given, parser=parser, classes=loaded)
    return SweepOptions(
        run=made,
        axis=axis,
        loads=loads,
        vary=vary or made.classes[0].name,
        folder=given.folder or Path(f"sweep-{datetime.now(UTC):%Y%m%d-%H%M%S}"),
        precision=given.precision,
        repeats=given.repeats,
    )


def _make_folder(folder: Path) -> None:
    try:
        if folder.is_dir() and any(folder.iterdir()):
            expected = "a folder that is not there yet, or empty: nothing is written over"
            raise OptionError("--dir", folder, expected)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        expected = f"a folder that can be made ({error.strerror})"
        raise OptionError("--dir", folder, expected) from error


async def _watched(
    options: SweepOptions,
    *,
    words: Sequence[str],
    classes: Sequence[TrafficClassSpec],
    key: str,
    quiet: bool,
) -> SweepRecord:
    """Sweep with each run's live view on stderr."""

    async def run_at(asked: RunOptions, load: str) -> RunRecord:
        say(f"-- {load}")
        command = recorded_command_of_point(words, classes, asked, vary=options.vary)
        return await watched_run(asked, command=command, key=key, quiet=quiet)

    def say(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    return await run_sweep(options, run_at, command=recorded_command(words), say=say)
