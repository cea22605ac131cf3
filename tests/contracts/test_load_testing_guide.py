"""deploy/guides/load-testing.md, and what README has of it, say what the load generator does."""

import argparse
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from loadgen.commands import compare_command, report_command, run_command, sweep_command
from loadgen.commands.one_line_parser import OneLineParser
from loadgen.commands.run_arguments import run_options
from loadgen.measures.definitions import DISTRIBUTIONS, ENERGY, RATES
from loadgen.records.result import Result
from loadgen.records.results_file import FORMAT
from loadgen.records.run_record import RunEnd, RunHeader
from loadgen.workloads.workload_spec import TraceFormat

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "deploy/guides/load-testing.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAM = "ultraserve-loadgen"
CALL = re.compile(rf"(?:\.venv/bin/)?{PROGRAM} (.*)")


def section(title: str) -> str:
    """The text below a heading, up to the next."""
    (_, _, rest) = GUIDE.partition(f"\n## {title}\n")
    assert rest, f"no section {title}"
    return rest.partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of every row of the tables in `text`, headings included, rules left out."""
    found = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return [cells for cells in found if not set("".join(cells)) <= {"-"}]


def commands() -> list[str]:
    """Every command of the guide and the README, in shell's blocks, without the program's name."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", GUIDE + README, re.DOTALL | re.MULTILINE)
    lines = (
        "\n".join(blocks).replace("\\\n", " ").replace("$URL", "http://127.0.0.1:8000").splitlines()
    )
    found = [CALL.match(line) for line in lines]
    return [call[1] for call in found if call is not None and "--help" not in call[1]]


def test_the_table_of_measures_is_that_of_the_code() -> None:
    heading, *table = rows(section("Every measure"))

    assert heading == ["name in JSON and CSV", "as printed", "unit", "formula"]
    assert table == [
        [f"`{each.name}`", each.label, each.unit, each.formula]
        for each in (*DISTRIBUTIONS, *RATES, *ENERGY)
    ]


@pytest.mark.parametrize("command", commands())
def test_a_command_that_is_shown_is_one_that_the_program_takes(command: str) -> None:
    parser = OneLineParser(prog=PROGRAM)
    added = parser.add_subparsers(dest="command")
    parsers: dict[str, OneLineParser] = {
        module.NAME: module.add(added)
        for module in (run_command, sweep_command, report_command, compare_command)
    }
    words = shlex.split(command)
    given: argparse.Namespace = parser.parse_args(words)

    if words[0] == "run":
        assert run_options(given, parser=parsers["run"]).classes


def test_the_guide_has_every_trace_format() -> None:
    table = rows(section("Workloads"))
    formats = {f"`{name}`" for name in get_args(TraceFormat)} - {"`auto`"}

    assert formats <= {cells[0] for cells in table}


def test_the_results_file_is_described_field_by_field() -> None:
    text = section("The results file")
    told = set(re.findall(r"`(\w+)`", text))

    assert FORMAT in text
    assert {field.name for kind in (Result, RunHeader, RunEnd) for field in fields(kind)} <= told
