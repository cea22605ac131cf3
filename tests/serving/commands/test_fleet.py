"""The command on a small fleet: its report, its files, and what it refuses."""

import json
from pathlib import Path

import pytest

from emulator.specs.systems import system_by_name
from serving.analysis.fleet.row_week import RowTask
from serving.analysis.fleet.virtual_fleet import FleetQuestion, row_tasks
from serving.commands.fleet import FleetOptions
from serving.main import command_parser, main
from startup.typed_options import read_options
from tests.golden import GoldenFolder

PLAN = """
name = "Two buildings"
source = "made up for this test"
weather.mild = { celsius = [5.0, 15.0, 25.0], pue_by_celsius = [[0, 1.0], [20, 1.2]], source = "-" }

[traffic]
model = "qwen3-30b-a3b"
slo = "ttft=200ms,tpot=30ms@p90"
policy = "fixed:4"
days = 1
input = "300"
output = "8"
peak_percent = 0.4
source = "made up"

[[failures]]
name = "board"
per = "chip"
mtbf_hours = 2_000
source = "made up"
repair_hours = 4
repair_source = "made up"

[[buildings]]
name = "full"
weather = "mild"
source = "made up"
rows = [{ system = "trn2-ultraserver", machines = 6, hot_spares = 1, cold_spares = 1 }]

[[buildings]]
name = "capped"
weather = "mild"
cap_mw = [0.05, 0.1]
source = "made up"
rows = [{ system = "trn2-ultraserver", machines = 4 }]
""".replace("[5.0, 15.0, 25.0]", str([5.0, 15.0, 25.0] * 8)).replace(
    "[0.05, 0.1]", str([0.05] * 6 + [0.1] * 18)
)


def plan(folder: Path, text: str = PLAN) -> str:
    path = folder / "fleet.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.slow
@pytest.mark.process
def test_a_fleet_is_walked_and_told(
    golden: GoldenFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = ("--json", str(tmp_path / "fleet.json"), "--plot", str(tmp_path / "fleet.svg"))
    terms = ("--requests", "40", "--sample", "2", "--processes", "1")

    assert main(["fleet", "--plan", plan(tmp_path), *terms, *files]) == 0

    golden.holds("fleet.txt", capsys.readouterr().out)
    found = json.loads((tmp_path / "fleet.json").read_text())
    everything, buildings = found["everything"], found["buildings"]
    for name in ("machines", "chips", "served_requests", "energy_mwh", "failures"):
        assert everything[name] == pytest.approx(sum(each[name] for each in buildings))
    capped = buildings[1]
    for watts, cap in zip(capped["meter_watts_by_hour"], capped["cap_watts_by_hour"], strict=True):
        assert watts <= cap * (1 + 1e-9)
    assert len(found["sampled"]["samples"]) == 2
    assert "capped" in (tmp_path / "fleet.svg").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--sample", "-1"), "sample=-1: expected at least 0"),
        (("--plot", "fleet.txt"), "plot=fleet.txt: expected a path that ends in"),
        (("--set", "speed=2x"), "assumption=speed: expected"),
    ],
)
def test_a_wrong_option_is_refused_in_a_line(
    change: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["fleet", "--plan", plan(tmp_path), *change]) != 0

    complaint = capsys.readouterr().err
    assert said in complaint
    assert "Traceback" not in complaint


def test_a_fleet_is_asked_with_other_figures(tmp_path: Path) -> None:
    words = ["fleet", "--plan", plan(tmp_path), "--set", "hbm_bandwidth=2x"]
    args = command_parser("fleet").parse_args(words)

    question = read_options(FleetOptions, args).question()

    catalog, row = system_by_name("trn2-ultraserver"), question.plan.buildings[0].rows[0]
    figure = question.system_of(row).chip.hbm_bytes_per_s.value
    assert figure == 2 * catalog.chip.hbm_bytes_per_s.value


def test_a_figure_of_one_system_changes_its_rows_alone(tmp_path: Path) -> None:
    row = '{ system = "trn2-ultraserver", machines = 4 }'
    assert row in PLAN
    both = PLAN.replace(row, f'{row}, {{ system = "trn3-nl72x2", machines = 2 }}')

    def told(*words: str) -> tuple[FleetQuestion, list[RowTask]]:
        words = ("fleet", "--plan", plan(tmp_path, both), *words)
        question = read_options(FleetOptions, command_parser("fleet").parse_args(words)).question()
        return question, row_tasks(question)[1:]

    def parts(tasks: list[RowTask]) -> list[float]:
        caps = [task.cap_watts for task in tasks]
        assert all(cap is not None for cap in caps)
        first_hour = [float(cap[0]) for cap in caps if cap is not None]
        return first_hour

    question, plain = told()
    watts = [question.system_of(task.row).provisioned_watts.value for task in plain]
    share = 4 * watts[0] / (4 * watts[0] + 2 * watts[1])
    assert parts(plain) == pytest.approx([50_000 * share, 50_000 * (1 - share)])
    question, tasks = told("--set", "link_backplane_bytes_per_s=2x")  # which Trn2 has none of
    rates = {task.row.system: question.system_of(task.row) for task in tasks}
    assert rates["trn2-ultraserver"] == system_by_name("trn2-ultraserver")
    assert rates["trn3-nl72x2"] != system_by_name("trn3-nl72x2")
    assert parts(tasks) == parts(plain)
    question, tasks = told("--set", "provisioned_watts=200000")  # which both have
    assert parts(tasks) == pytest.approx([50_000 * 4 / 6, 50_000 * 2 / 6])


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"qwen3-30b-a3b"', '"no-model"', "model=no-model: expected"),
        ('"fixed:4"', '"sometimes"', "policy=sometimes: expected"),
        ('"fixed:4"', '"oracle"', "policy=oracle: expected a policy that need not know the day"),
        ("days = 1", "days = 0", "days=0: expected at least 1"),
        ("peak_percent = 0.4", "peak_percent = -1.0", "peak=-1%: expected above 0 %"),
        ('"ttft=200ms,tpot=30ms@p90"', '"fast"', "slo=fast: expected"),
    ],
)
def test_a_wrong_entry_of_the_plan_is_refused_in_a_line(
    before: str, after: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert before in PLAN

    assert main(["fleet", "--plan", plan(tmp_path, PLAN.replace(before, after))]) != 0

    complaint = capsys.readouterr().err
    assert said in complaint
    assert "Traceback" not in complaint
