"""`ultraserve-loadgen report`: reports of runs and sweeps from their files."""

import argparse
from pathlib import Path
from typing import Final

from loadgen.commands import exit_codes
from loadgen.commands.one_line_parser import Commands, OneLineParser
from loadgen.commands.report_files import (
    add_report_arguments,
    asked_files,
    check_report_files,
    hand_over,
)
from loadgen.errors import LoadError
from loadgen.measures.definitions import help_text
from loadgen.measures.measurement import measure_run
from loadgen.records.results_file import read_results
from loadgen.records.sweep_record import NAME as SWEEP_NAME
from loadgen.records.sweep_record import read_sweep
from loadgen.reports.run_report import RunReport
from loadgen.reports.sweep_report import SweepReport

NAME: Final = "report"
EXAMPLES: Final = """\
examples:
  ultraserve-loadgen report results.jsonl
  ultraserve-loadgen report results.jsonl --html report.html --csv-requests requests.csv
  ultraserve-loadgen report sweep-20260101-120000 --png sweep.png"""


def add(commands: Commands) -> OneLineParser:
    """Add the command's parser."""
    parser = commands.add_parser(
        NAME,
        description="Report runs from the files that `run --results` wrote, and sweeps from their "
        "folders.\nSeveral are printed one after another; a file can be written of one.",
        epilog="\n\n".join([EXAMPLES, help_text()]),
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="RESULTS", help="results.jsonl, or a sweep's folder"
    )
    add_report_arguments(parser, requests=True)
    return parser


def handle(given: argparse.Namespace) -> int:
    """Write and print the reports; returns the exit code. Raises LoadError, OutputClosed."""
    paths = [path / SWEEP_NAME if path.is_dir() else path for path in given.files]
    check_report_files(given, others=[("the input", path) for path in paths])
    if len(paths) > 1 and asked_files(given):
        raise LoadError(f"a file can be written of one run, not of {len(paths)}")
    for path in paths:
        if path.name == SWEEP_NAME:
            if given.csv_requests is not None:
                raise LoadError("--csv-requests: expected the results of one run, not a sweep")
            hand_over(given, SweepReport(sweep=read_sweep(path)))
            continue
        record = read_results(path)
        hand_over(given, RunReport(record=record, measures=measure_run(record)), record)
    return exit_codes.OK
