"""Whole reports as they are printed and written, each held against its golden file."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from loadgen.measures.measurement import measure_run
from loadgen.records.run_record import RunRecord
from loadgen.reports.run_report import RunReport
from loadgen.reports.sweep_report import SweepReport
from reporting.data_forms import to_csv
from reporting.document import ReportDocument
from reporting.markdown import to_markdown
from reporting.terminal import print_report
from tests.golden import GoldenFolder
from tests.loadgen.reports.made_comparisons import ALL
from tests.loadgen.reports.made_runs import FOREIGN, made_run, simulated_run
from tests.loadgen.reports.made_sweeps import made_sweep


def of_run(made: RunRecord) -> RunReport:
    return RunReport(record=made, measures=measure_run(made))


REPORTS: dict[str, Callable[[], ReportDocument]] = {
    "run": lambda: of_run(made_run()),
    "run_of_two_classes": lambda: of_run(
        made_run(names=("chat", "batch"), stall_s=1.5, slo="ttft=300ms,tpot=20ms@p99")
    ),
    "run_against_a_foreign_server": lambda: of_run(made_run(start=FOREIGN, failing=0.0)),
    "simulated_run": lambda: of_run(simulated_run()),
    "sweep": lambda: SweepReport(sweep=made_sweep()),
    "sweep_over_concurrencies": lambda: SweepReport(
        sweep=replace(made_sweep(), axis="concurrency", time="wall")
    ),
    "comparison": lambda: ALL,
}


def printed(report: ReportDocument, width: int, *, coloured: bool = False) -> str:
    colours = "standard" if coloured else None
    console = Console(width=width, force_terminal=coloured, color_system=colours)
    with console.capture() as captured:
        print_report(report, console)
    return captured.get()


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [80, 160])
def test_a_report_is_printed_in_the_width_of_its_terminal(
    name: str, width: int, golden: GoldenFolder
) -> None:
    golden.holds(f"{name}.{width}.txt", printed(REPORTS[name](), width))


@pytest.mark.long
@pytest.mark.parametrize("name", ["run_of_two_classes", "sweep", "comparison"])
def test_a_terminal_with_colours_gets_them(name: str, golden: GoldenFolder) -> None:
    golden.holds(f"{name}.colours.txt", printed(REPORTS[name](), 110, coloured=True))


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_markdown(name: str, golden: GoldenFolder) -> None:
    golden.holds(f"{name}.md.txt", to_markdown(REPORTS[name]()))


@pytest.mark.parametrize("name", ["sweep", "comparison"])
def test_a_report_is_csv(name: str, golden: GoldenFolder) -> None:
    golden.holds(f"{name}.csv.txt", to_csv(REPORTS[name]()))
