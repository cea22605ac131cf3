import csv
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from loadgen.records.sweep_record import PointFigures, SaturationFound, SweepPoint, SweepRecord
from loadgen.reports.sweep_report import SweepReport
from reporting.data_forms import to_csv, to_json
from reporting.terminal import print_report
from tests.loadgen.reports.made_sweeps import made_sweep


def printed(sweep: SweepRecord, *, width: int = 160) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        print_report(SweepReport(sweep=sweep), console)
    return captured.get()


def words(text: str) -> str:
    return " ".join(text.split())


def test_points_stand_by_load_whatever_order_they_ran_in() -> None:
    sweep = made_sweep(loads=(16, 4, 24, 48))
    lines = printed(replace(sweep, pareto_per_mw=(), pareto_per_chip=())).splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("points, by load"))
    rows = [line.split() for line in lines[start + 3 : start + 7]]

    assert [row[0] for row in rows] == ["4", "16", "24", "48"]
    assert rows[2][1] == "knee"
    assert "no kept" in " ".join(rows[0])
    assert "yes missed" in " ".join(rows[3])


@pytest.mark.parametrize("width", [80, 110])
def test_a_narrow_terminal_keeps_throughput_latency_and_verdicts(width: int) -> None:
    lines = printed(made_sweep(), width=width).splitlines()
    (head,) = [line for line in lines if "TTFT p50" in line]

    assert max(len(line) for line in lines if not line.startswith("repeat:")) <= width
    assert "requests/s" in head
    assert ("TPOT p50" in head) is ("TPOT p99" in head)
    assert " ".join(head.split()).count(" p99") == head.count("TTFT p99") + head.count("TPOT p99")
    assert "SLO" in head


def test_without_an_slo_a_knee_or_meters_nothing_is_said_of_them() -> None:
    bare = SweepPoint(
        load=4.0,
        stage="grid",
        results="a.jsonl",
        seed=0,
        requests=3,
        figures=PointFigures(),
        saturation=SaturationFound(over=None, words="too short"),
        warnings=("2 replies have another length",),
    )
    sweep = replace(
        made_sweep(),
        axis="concurrency",
        points=(bare,),
        knee=None,
        best=None,
        highest_requests_per_s=None,
        pareto_per_mw=(),
        pareto_per_chip=(),
        interrupted=True,
        stopped="Ctrl-C",
    )
    text = words(printed(sweep))

    assert "sweep over concurrencies" in text
    assert "interrupted: Ctrl-C" in text
    assert "SLO" not in text
    assert "Pareto" not in text
    assert "knee" not in text
    assert "in flight 4: 2 replies have another length" in text
    assert SweepReport(sweep=sweep).charts() == ()
    assert json.loads(to_json(SweepReport(sweep=sweep)))["knee"] is None


def test_what_all_points_have_to_say_is_said_once() -> None:
    sweep = made_sweep(loads=(2, 4, 8))
    warnings = {2: ("no /metrics", "1 reply is short"), 4: ("1,207 replies are late",)}
    warnings[8] = ("no /metrics", "16 replies are late", "no /metrics of 2.5 s")
    points = [replace(each, warnings=warnings[int(each.load)]) for each in sweep.points]
    report = SweepReport(sweep=replace(sweep, points=tuple(reversed(points))))

    assert report.document().notes == (
        "sessions/s 2, 8: no /metrics",
        "sessions/s 2: 1 reply is short",
        "sessions/s 4, 8: 16 replies are late (at 8)",
        "sessions/s 8: no /metrics of 2.5 s",
    )


def test_csv_and_json_have_every_figure_of_every_point() -> None:
    report = SweepReport(sweep=made_sweep())
    rows = list(csv.DictReader(io.StringIO(to_csv(report), newline="")))
    found = {(float(row["load"]), row["figure"]): row for row in rows}

    assert len(found) == len(rows) == 8 * 16
    row = found[24.0, "ttft_p99_ms"]
    assert float(row["low_95"]) < float(row["value"]) < float(row["high_95"])
    assert (row["verdict"], row["results"], row["load_unit"]) == (
        "kept",
        "rate-24.jsonl",
        "sessions/s",
    )
    points = json.loads(to_json(report))["points"]
    assert points[4]["figures"]["ttft_p99_ms"]["value"] == float(row["value"])


@pytest.mark.long
def test_the_charts_show_the_knee_and_the_points_that_no_other_beats() -> None:
    drawn_charts = SweepReport(sweep=made_sweep()).charts()
    charts = {each.title: each.chart.to_dict() for each in drawn_charts}

    assert list(charts) == [
        "Throughput against load",
        "Latency against load",
        "Output tokens/s per MW against interactivity",
        "Output tokens/s per chip against interactivity",
    ]
    for title in list(charts)[:2]:
        drawn = json.dumps(charts[title])
        assert '"words": "knee 24"' in drawn
        assert '"words": "SLO kept to 24"' in drawn
        rows = [row for rows in charts[title]["datasets"].values() for row in rows]
        heights = [row["y"] for row in rows if "words" in row]
        assert len(set(heights)) == 2  # neither word on the other,
        assert max(heights) < 0  # and none where a line of the chart could strike it out
        assert charts[title]["layer"][0]["mark"]["type"] == "rule"  # below every error bar
    of_goodput = json.dumps(charts["Throughput against load"]["layer"][1]["encoding"])
    assert '"strokeDash"' in of_goodput  # where nothing misses the SLO both lines are one
    about = {each.title: each.about for each in drawn_charts}
    assert "the load: sessions/s." in about["Output tokens/s per MW against interactivity"]
    datasets = charts["Output tokens/s per MW against interactivity"]["datasets"].values()
    points = max(datasets, key=len)
    assert len(points) == 8
    assert [row["number"] for row in points if row["best"] == "beaten by another"] == ["48"]
