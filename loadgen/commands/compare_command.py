"""`ultraserve-loadgen compare`: differences between two sides beyond noise."""

import argparse
from pathlib import Path
from typing import Final

from loadgen.commands import exit_codes
from loadgen.commands.one_line_parser import Commands, OneLineParser
from loadgen.commands.report_files import add_report_arguments, check_report_files, hand_over
from loadgen.measures.difference import compare
from loadgen.records.results_file import read_results
from loadgen.reports.comparison_report import ComparisonReport

NAME: Final = "compare"
DESCRIPTION: Final = """\
Compare two sides figure by figure, and say which differences are beyond noise. A side is one file
that `run --results` wrote, or several of them with commas in between: runs of the same thing."""
METHOD: Final = """\
method:
  With three runs or more on a side the runs themselves say how far apart equal ones are (Welch's
  test); with fewer, blocks of time within a run stand for that (a moving block bootstrap). Of all
  the differences that are called beyond noise, 5 % may be chance (Benjamini and Hochberg).

examples:
  ultraserve-loadgen compare before.jsonl after.jsonl
  ultraserve-loadgen compare a1.jsonl,a2.jsonl,a3.jsonl b1.jsonl,b2.jsonl,b3.jsonl --html ab.html"""


def add(commands: Commands) -> OneLineParser:
    """Add the command's parser."""
    parser = commands.add_parser(NAME, description=DESCRIPTION, epilog=METHOD)
    for side, words in (("a", "the side to compare with"), ("b", "the side that is judged")):
        parser.add_argument(side, type=_files, metavar=f"{side.upper()}.jsonl[,...]", help=words)
    add_report_arguments(parser, requests=False)
    return parser


def handle(given: argparse.Namespace) -> int:
    """Compare and report; returns the exit code. Raises LoadError, OutputClosed."""
    check_report_files(given, others=[("the input", path) for path in (*given.a, *given.b)])
    sides = [[read_results(path) for path in side] for side in (given.a, given.b)]
    hand_over(given, ComparisonReport(comparison=compare(*sides)))
    return exit_codes.OK


def _files(text: str) -> tuple[Path, ...]:
    paths = tuple(Path(part) for part in text.split(",") if part)
    if not paths:
        raise argparse.ArgumentTypeError("expected files with commas in between")
    return paths
