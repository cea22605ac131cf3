"""`ultraserve compare` from its arguments to its text, JSON and files."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emulator.errors import ConfigError
from reporting.plain_text import document_lines
from serving.analysis.compare.compare import SystemComparison, SystemRefusal
from serving.analysis.compare.compare_report import CompareReport
from serving.commands import compare as command
from serving.commands import plan as plan_command
from serving.main import main
from startup.typed_options import read_options

DEMAND = (
    *("--model", "qwen3-30b-a3b", "--slo", "ttft=300ms,tpot=20ms@p90", "--chips", "1"),
    *("--requests", "30", "--processes", "1", "--tries", "1", "--prefill-policy", "none"),
    *("--rate", "60", "--input", "400", "--output", "12", "--no-pools"),
)
SYSTEMS = ("--systems", "trn3-nl72x2,dgx-h200,trainium4,inf2.48xlarge")
PRICES = """
[energy]
kwh_dollars = { value = 0.1, source = "assumed" }
grid_gco2_per_kwh = { value = 400, source = "assumed" }
[systems.dgx-h200.on_demand]
hour_dollars = 40
source = "assumed"
"""


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["compare", *arguments])


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    return path


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["compare", *DEMAND, *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.process
def test_two_systems_and_two_that_cannot(
    capsys: pytest.CaptureFixture[str], prices: Path, tmp_path: Path
) -> None:
    page, chart = tmp_path / "page.html", tmp_path / "chart.svg"
    files = ("--prices", str(prices), "--html", str(page), "--plot", str(chart))
    data = compared(capsys, *SYSTEMS, *files)

    trn3, gpu = data["systems"]
    assert (trn3["system"], gpu["system"]) == ("trn3-nl72x2", "dgx-h200")
    assert trn3["check"]["meets"]
    assert gpu["check"]["meets"]
    budgets = [each["search_budget_s"] for each in data["systems"]]
    assert sum(budgets) == pytest.approx(600.0)
    assert min(budgets) >= 150.0
    assert [(each["system"], each["kind"]) for each in data["refusals"]] == [
        ("trainium4", "a data sheet"),
        ("inf2.48xlarge", "does not fit"),
    ]

    # Worked by hand: one machine of 40 dollars an hour, its mean watts at 0.1 dollars a kWh.
    kilowatts = gpu["power"]["mean_drawn_watts"] / 1e3
    assert gpu["machines"] == 1
    assert gpu["dollars_per_hour"] == pytest.approx(40 + 0.1 * kilowatts)
    share = gpu["power"]["day_cost"]["dollars_per_million_output"]
    million_per_hour = gpu["dollars_per_hour"] / share
    assert gpu["gco2_per_million_output"] == pytest.approx(400 * kilowatts / million_per_hour)
    # Trn3 has no price: it is even where its one machine costs as much as the other's hour.
    assert trn3["dollars_per_hour"] is None
    assert trn3["break_even_machine_hour_dollars"] == pytest.approx(gpu["dollars_per_hour"])
    assert data["least"]["cost"]["system"] == "dgx-h200"
    claims = {each["claim"]: each for each in data["price_claims"]}
    claim = claims["up to 40 % lower cost"]
    assert (claim["verdict"], claim["break_even_machine_hours_of_base"]) == ("not priced", 0.6)
    assert claim["break_even_machine_hour_dollars"] == pytest.approx(0.6 * gpu["dollars_per_hour"])

    assert "systems side by side" in page.read_text()
    assert chart.read_text().startswith("<svg")


@pytest.mark.slow
@pytest.mark.process
def test_the_same_seeds_give_the_same_answer_which_is_the_plan_s(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("--systems", "dgx-h200", "--seed", "3")
    first, again = compared(capsys, *asked), compared(capsys, *asked)
    assert first == again
    assert main(["plan", *DEMAND, "--system", "dgx-h200", "--seed", "3", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert first["systems"][0]["check"] == alone["checks"]["plan"]


@pytest.mark.process
def test_the_text_says_what_is_least_what_cannot_and_that_nothing_is_priced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", *DEMAND, "--systems", "dgx-h200,mi455x"]) == 0
    captured = capsys.readouterr()
    assert "least: chips in service dgx-h200" in captured.out
    assert "not settled" not in captured.out
    assert "mi455x: a data sheet: announced, cannot be timed" in captured.out
    assert "not priced (--prices FILE)" in captured.out
    assert "dgx-h200: " in captured.err


@pytest.mark.process
def test_no_system_that_can_is_an_exit_code_and_no_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", *DEMAND, "--systems", "trainium4,inf2.48xlarge"]) == 1
    assert "no system serves this" in capsys.readouterr().out
    tight = ("--slo", "ttft=300ms,tpot=10us@p90")
    assert main(["compare", *DEMAND, *tight, "--systems", "dgx-h200"]) == 1
    assert "dgx-h200: the target is out of reach: what an idle" in capsys.readouterr().out


def report_of(*arguments: str) -> CompareReport:
    args = parsed(*arguments)
    return command._report(args, read_options(command.CompareOptions, args), [])


def test_an_interrupt_leaves_the_other_systems_out() -> None:
    args = parsed(*DEMAND, "--systems", "dgx-h200,dgx-h100")
    report = command._report(args, read_options(command.CompareOptions, args), [2])
    kinds = {each.system: each.kind.value for each in report.comparison.refusals}
    assert kinds == {"dgx-h200": "interrupted", "dgx-h100": "interrupted"}


@pytest.mark.process
@pytest.mark.slow
def test_one_machine_that_does_not_hold_the_model_is_planned_as_a_cluster() -> None:
    wide = (*DEMAND, "--model", "deepseek-r1", "--chips", "16", "--tp", "8", "--rate", "1")
    slow = ("--slo", "ttft=5s,tpot=200ms@p90")
    report = report_of(*wide, *slow, "--systems", "dgx-h100")
    (row,) = report.comparison.found
    assert (row.units_of_cluster, row.machines) == (2, 2 * row.plan.machines)
    assert any("one dgx-h100 does not hold the model" in line for line in lines(report))


def lines(report: CompareReport) -> list[str]:
    return [*document_lines(report.document())]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--systems", "h100"), "system=h100"),
        (("--systems", "dgx-h100", "--model", "gpt-oss"), "model=gpt-oss"),
        (("--systems", "dgx-h100", "--html", "page.txt"), "ends in .html"),
        (("--systems", "dgx-h100", "--plot", "page.txt"), "ends in .png"),
        (("--systems", "dgx-h100", "--prices", "none.toml"), "a file to read"),
    ],
)
def test_what_is_wrong_on_every_system_is_refused_before_the_work(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *DEMAND, *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_plan_takes_the_same_file_and_no_price_beside_it(prices: Path) -> None:
    parser = argparse.ArgumentParser()
    plan_command.add_parser(parser.add_subparsers())
    asked = ("plan", *DEMAND, "--prices", str(prices))

    def question(*more: str) -> object:
        return plan_command.question_of(parser.parse_args([*asked, *more])).prices

    found = question("--system", "dgx-h200")
    assert (found.system_hour_dollars, found.kwh_dollars) == (40, 0.1)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="a price of trn3-nl72x2 for on_demand"):
        question()
    with pytest.raises(ConfigError, match="nothing beside --prices"):
        question("--system", "dgx-h200", "--price-kwh", "0.2")


def test_a_report_without_a_plan_is_whole() -> None:
    report = report_of(*DEMAND, "--systems", "trainium4")
    empty: SystemComparison = report.comparison
    assert replace(report).charts() == () == report.figures()
    assert all(isinstance(each, SystemRefusal) for each in empty.refusals)


@pytest.mark.process
def test_equals_are_named_together_and_none_that_may_miss_the_target_is_the_least() -> None:
    report = report_of(*DEMAND, "--systems", "dgx-h200")
    (row,) = report.comparison.found
    twin = replace(row, unit=replace(row.unit, name="twin"))
    check = row.plan.choice.check
    missed = replace(check, terms=tuple(replace(term, share_low=0.5) for term in check.terms))
    unsure = replace(row, plan=replace(row.plan, choice=replace(row.plan.choice, check=missed)))

    both = replace(report, comparison=replace(report.comparison, found=(row, twin)))
    assert any("dgx-h200 and twin" in line for line in lines(both))
    named = replace(report, comparison=replace(report.comparison, found=(unsure, twin)))
    assert "least: chips in service twin (" in named.document().verdict
