"""`ultraserve-loadgen run`: send a workload, measure, report."""

import argparse
import os
from collections.abc import Sequence
from typing import Final

import uvloop
from rich.console import Console

from loadgen.commands import exit_codes
from loadgen.commands.one_line_parser import Commands, OneLineParser
from loadgen.commands.recorded_command import recorded_command
from loadgen.commands.report_files import add_report_arguments, check_report_files, hand_over
from loadgen.commands.run_arguments import (
    KEY_VARIABLE,
    add_class_arguments,
    add_server_arguments,
    files_read,
    run_options,
)
from loadgen.live.live_counts import LiveCounts
from loadgen.live.live_view import live_view
from loadgen.measures.definitions import help_text
from loadgen.measures.measurement import measure_run
from loadgen.measures.run_measures import RunMeasures
from loadgen.records.run_record import RunRecord
from loadgen.reports.run_report import RunReport
from loadgen.runs.options import RunOptions
from loadgen.runs.run import run
from loadgen.workloads.traffic_class_spec import add_traffic_class_arguments
from startup.typed_options import add_options

NAME: Final = "run"
EXAMPLES: Final = """\
examples:
  ultraserve-loadgen run --requests 100 --rate 4
  ultraserve-loadgen run --trace AzureLLMInferenceTrace_conv.csv --speedup 2 --html report.html
  ultraserve-loadgen run --input uniform:64-1024 --output 128 --concurrency 16 --duration 60s
  ultraserve-loadgen run --input lognormal:900,600 --output 200 --rate ramp:1-20/5m \\
      --duration 5m --slo ttft=500ms,tpot=40ms@p99 --results day.jsonl
  ultraserve-loadgen run --requests 200 --api chat --shared-prefix 512x4 --turns uniform:2-6 \\
      --think 5s --rate 2
  ultraserve-loadgen run --input 256 --output 64 --duration 60s \\
      --traffic-class 'chat rate=4 api=chat slo=ttft=200ms@p99' \\
      --traffic-class 'batch concurrency=8 output=512'"""


def add(commands: Commands) -> OneLineParser:
    """Add the command's parser."""
    parser = commands.add_parser(
        NAME,
        description="Send a workload, streaming, and report what came back.",
        usage="ultraserve-loadgen run [OPTION ...]",
        epilog="\n\n".join([EXAMPLES, help_text(), exit_codes.WORDS]),
        argument_default=argparse.SUPPRESS,
    )
    add_server_arguments(parser)
    add_class_arguments(parser)
    add_traffic_class_arguments(parser)
    add_options(parser, RunOptions)
    add_report_arguments(parser, requests=True)
    parser.add_argument("--quiet", action="store_true", default=False, help="show no progress")
    return parser


def handle(given: argparse.Namespace, *, parser: OneLineParser, words: Sequence[str]) -> int:
    """Run and report; returns the exit code. Raises LoadError, OutputClosed."""
    options = run_options(given, parser=parser)
    check_report_files(given, others=[("--results", options.results), *files_read(options)])
    command, key = recorded_command(words), os.environ.get(KEY_VARIABLE, "")
    record = uvloop.run(watched_run(options, command=command, key=key, quiet=given.quiet))
    measures = measure_run(record)
    hand_over(given, RunReport(record=record, measures=measures), record)
    return _exit_code(record, measures)


async def watched_run(options: RunOptions, *, command: str, key: str, quiet: bool) -> RunRecord:
    """Run with a live view on stderr, unless `quiet`; see `loadgen.runs.run.run`."""
    live = LiveCounts()
    async with live_view(live, console=Console(stderr=True), quiet=quiet):
        return await run(options, command=command, key=key, live=live)


def _exit_code(record: RunRecord, measures: RunMeasures) -> int:
    if record.end is not None and record.end.problem:
        return exit_codes.REQUESTS_FAILED
    if record.end is None or record.end.interrupted:
        return exit_codes.INTERRUPTED
    nothing = not measures.total.completed  # as with a --skip that is longer than the run
    return exit_codes.REQUESTS_FAILED if measures.total.failed or nothing else exit_codes.OK
