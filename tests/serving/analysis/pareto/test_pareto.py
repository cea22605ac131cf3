import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.power.efficiency import PowerBasis
from emulator.power.token_cost import Prices
from emulator.specs.shipped_fits import calibration_for
from serving.analysis.chart_file import write_chart
from serving.analysis.pareto.pareto import pareto, thinned
from serving.analysis.pareto.pareto_chart import pareto_chart
from serving.analysis.pareto.pareto_report import (
    as_data,
    assumption_lines,
    dollars_per_million_output,
    point_table,
    ratio_table,
)
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from tests.serving.analysis.steady_state.small_machines import small_sweep, trays


class Loads(HTMLParser):
    """What tags of a page would load; text of scripts has no tags."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.addresses += [f"{tag} {value}" for name, value in attrs if name in ("src", "href")]


def loaded_from(page: str) -> list[str]:
    parser = Loads()
    parser.feed(page)
    return parser.addresses


@pytest.fixture(scope="module")
def two_machines():
    larger = replace(trays(2), name="2-trays")
    sweeps = (small_sweep(), small_sweep(system=larger))
    return pareto(sweeps, basis=PowerBasis.DRAWN)


@pytest.mark.long
def test_the_envelope_is_of_points_that_no_other_point_beats(two_machines) -> None:
    for machine in two_machines.machines:
        best = machine.on_envelope()
        plane = [
            (p.tokens_per_s_per_user, p.output_tokens_per_s_per_mw(PowerBasis.DRAWN))
            for p in machine.points
        ]
        for point in best:
            x = point.tokens_per_s_per_user
            y = point.output_tokens_per_s_per_mw(PowerBasis.DRAWN)
            assert not any(a >= x and b >= y and (a, b) != (x, y) for a, b in plane)
        reached = [p.tokens_per_s_per_user for p in best]
        assert reached == sorted(reached)


@pytest.mark.long
def test_every_batch_there_is_hardly_moves_the_envelope() -> None:
    # The partitions on the envelope are tried between the powers of two; others are not.
    few = small_sweep(asked=PartitionFilter(tp=(1,), ep=(2, 4), lnc=(2,)), batches=())
    every = replace(few, batches=tuple(range(1, 400)))
    sampled = pareto((few,)).machines[0]
    exact = pareto((every,)).machines[0]

    low = float(exact.envelope.x[0])
    x = np.geomspace(low, sampled.envelope.reach, 80)
    moved = exact.envelope.at(x) / sampled.envelope.at(x)

    assert len(sampled.points) < len(exact.points) / 5
    assert moved == pytest.approx(1, abs=0.04)


@pytest.mark.long
def test_a_ratio_is_that_of_the_two_envelopes(two_machines) -> None:
    first, second = two_machines.machines
    ((other, curve),) = two_machines.ratios()

    assert other is second
    at = np.array([curve.x[3]])
    assert curve.ratio[3] == pytest.approx(float(second.envelope.at(at) / first.envelope.at(at)))


def test_the_vendor_s_claims_are_about_its_two_machines_alone(two_machines) -> None:
    assert two_machines.vendor_findings == ()


@pytest.mark.long
def test_pools_add_points_and_take_none_away() -> None:
    alone = pareto((small_sweep(),)).machines[0]
    both = pareto((small_sweep(),), pools=True).machines[0]

    assert set(alone.points) < set(both.points)
    assert (both.envelope.at(alone.envelope.x) >= alone.envelope.y).all()


def test_a_system_is_named_once() -> None:
    with pytest.raises(ConfigError, match="systems=1-trays: expected each system once"):
        pareto((small_sweep(), small_sweep()))


def test_a_thin_table_keeps_both_ends(two_machines) -> None:
    points = two_machines.machines[0].points

    few = thinned(points, 3)

    assert len(few) == 3
    assert (few[0], few[-1]) == (points[0], points[-1])
    assert thinned(few, 10) == few


def test_the_table_says_what_each_point_gives(two_machines) -> None:
    machine = two_machines.machines[0]
    table = point_table(machine, two_machines, 100, None)
    header = [column.heading for column in table.columns]
    rows = [[cell.words for cell in row] for row in table.rows]
    point = machine.on_envelope()[0]
    cells = dict(zip(header, rows[0], strict=True))

    assert len(rows) == len(machine.on_envelope())
    assert cells["tok/s/user"] == f"{point.tokens_per_s_per_user:,.1f}"
    assert cells["tok/s/MW"] == f"{point.output_tokens_per_s_per_mw(PowerBasis.DRAWN):,.0f}"
    assert cells["precision"] == "mxfp4"
    assert cells["prefill"] == "same chips"
    lines = list(assumption_lines(machine, two_machines))
    assert "512 prompt and 256 output tokens" in lines[0]
    assert "power drawn" in lines[1]


def test_prices_add_a_column_with_the_whole_machine_s_hour(two_machines) -> None:
    machine = two_machines.machines[0]
    point = machine.on_envelope()[0]
    prices = Prices(chip_hour_dollars=2.0, kwh_dollars=0.1)

    dollars = dollars_per_million_output(point, machine.sweep.system, prices)
    table = point_table(machine, two_machines, 4, prices)

    hour = 4 * 2.0 + 0.1 * point.drawn_watts / 1_000
    assert dollars == pytest.approx(hour / (point.output_tokens_per_s * 3_600) * 1e6)
    assert table.columns[-1].heading == "$/M out"


def test_json_has_every_point_with_its_unit_and_marks_the_envelope(two_machines) -> None:
    data = json.loads(json.dumps(as_data(two_machines)))

    assert set(data) == {"model", "power_basis", "machines", "ratios", "vendor_claims"}
    assert data["power_basis"] == "drawn"
    for machine, held in zip(two_machines.machines, data["machines"], strict=True):
        assert (held["system"], held["chips"]) == (machine.name, machine.sweep.system.chips.count)
        assert len(held["points"]) == len(machine.points)
        marked = [each for each in held["points"] if each["on_envelope"]]
        assert len(marked) == len(machine.envelope.x)
        for point, each in zip(machine.points, held["points"], strict=True):
            assert each["tokens_per_s_per_user"] == pytest.approx(1e9 / each["tpot_ns"])
            assert each["tp"] == point.candidate.partition.tp
            per_mw = each["output_tokens_per_s"] / each["drawn_watts"] * 1e6
            assert each["output_tokens_per_s_per_mw"] == pytest.approx(per_mw)
    assert ratio_table(two_machines).rows[0][0].words == "2-trays / 1-trays"


@pytest.mark.long
def test_the_picture_is_a_png(two_machines, tmp_path: Path) -> None:
    path = tmp_path / "curve.png"

    write_chart(pareto_chart(two_machines), path, field="picture")

    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width = int.from_bytes(data[16:20], "big")
    assert width > 1_000


@pytest.mark.long
def test_the_page_needs_nothing_but_itself(two_machines, tmp_path: Path) -> None:
    path = tmp_path / "curve.html"

    write_chart(pareto_chart(two_machines), path, field="picture")

    page = path.read_text()
    assert loaded_from(page) == []
    assert "@import" not in page
    assert "1-trays" in page
    assert "2-trays" in page


def test_a_page_that_loads_something_would_be_noticed() -> None:
    page = '<script>"<img src=a>"</script><script src="https://a/b.js"></script>'

    assert loaded_from(page) == ["script https://a/b.js"]


@pytest.mark.long
def test_a_picture_of_another_kind_is_refused(two_machines, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a path that ends in .png, .svg, .html"):
        write_chart(pareto_chart(two_machines), tmp_path / "curve.gif", field="picture")


@pytest.mark.long
def test_a_picture_that_cannot_be_written_is_refused(two_machines, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a path in a folder that exists"):
        write_chart(
            pareto_chart(two_machines), tmp_path / "nowhere" / "curve.html", field="picture"
        )


@pytest.mark.long
def test_expert_groups_that_are_left_out_would_not_be_on_the_envelope() -> None:
    # 16 chips: groups of 9 and 10 hold 4 experts on their fullest chip, as groups of 8 do.
    of_any_size = PartitionFilter(tp=(1, 2, 4), ep=tuple(range(1, 17)), lnc=(2,))
    all_sizes = small_sweep(system=trays(4), asked=of_any_size)
    some = small_sweep(system=trays(4), asked=PartitionFilter(tp=(1, 2, 4), lnc=(2,)))
    whole = pareto((all_sizes,)).machines[0]
    kept = pareto((some,)).machines[0]

    assert len(kept.points) < len(whole.points)
    at = whole.envelope.x
    assert kept.envelope.at(at) == pytest.approx(whole.envelope.at(at))


def test_a_chip_that_no_fit_has_seen_is_told_as_such(two_machines) -> None:
    machine = two_machines.machines[0]
    chip = machine.sweep.system.chip
    calibration = calibration_for(chip.name, name="fitted")
    sweep = replace(machine.sweep, assumptions=StepAssumptions(calibration=calibration))

    (first, _) = assumption_lines(replace(machine, sweep=sweep), two_machines)

    assert "calibration fitted (no measurements of trainium3: factors that all" in first
    assert "calibration roofline" in next(iter(assumption_lines(machine, two_machines)))
