"""`ultraserve-loadgen report`: reports of runs, and of sweeps, from their files."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from loadgen.commands import exit_codes
from loadgen.commands.one_line_parser import OneLineParser
from loadgen.commands.report_files import (
    add_report_arguments,
    check_report_files,
    write_reports,
    write_requests,
)
from loadgen.errors import LoadError
from loadgen.measures.definitions import help_text
from loadgen.measures.measurement import measure_run
from loadgen.records.results_file import read_results
from loadgen.records.sweep_file import NAME as SWEEP_NAME
from loadgen.records.sweep_file import read_sweep
from loadgen.reports.run_report import RunReport
from loadgen.reports.sweep_report import SweepReport
from loadgen.reports.terminal import print_report, report_console

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[OneLineParser]

NAME: Final = "report"
EXAMPLES: Final = """\
examples:
  ultraserve-loadgen report results.jsonl
  ultraserve-loadgen report results.jsonl --html report.html --csv-requests requests.csv
  ultraserve-loadgen report sweep-20260101-120000 --png sweep.png"""


def add(commands: "Commands") -> OneLineParser:
    """Add the command's parser."""
    parser = commands.add_parser(
        NAME,
        help="print and write reports of what was measured before",
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
    """Print and write the reports; returns the exit code. Raises LoadError."""
    check_report_files(given)
    written = (given.json, given.csv, given.markdown, given.html, given.png, given.csv_requests)
    if len(given.files) > 1 and any(path is not None for path in written):
        raise LoadError(f"a file can be written of one run, not of {len(given.files)}")
    console = report_console()
    for path in given.files:
        sweep_path = path / SWEEP_NAME if path.is_dir() else path
        if sweep_path.name == SWEEP_NAME:
            if given.csv_requests is not None:
                raise LoadError("--csv-requests: expected the results of one run, not a sweep")
            sweep = SweepReport(sweep=read_sweep(sweep_path))
            print_report(sweep, console)
            write_reports(given, sweep)
            continue
        record = read_results(path)
        report = RunReport(record=record, measures=measure_run(record))
        print_report(report, console)
        write_reports(given, report)
        write_requests(given, record)
    return exit_codes.OK
