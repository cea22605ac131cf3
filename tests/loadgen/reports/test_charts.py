"""Charts by what they draw, and the page and the picture that hold them."""

import json
import struct
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import vl_convert

from loadgen.measures.measurement import measure_run
from loadgen.records.run_record import RunRecord
from loadgen.reports.run_report import RunReport
from loadgen.reports.sweep_report import SweepReport
from reporting.charts import TitledChart, styled, to_png
from reporting.html import to_html
from tests.loadgen.reports.made_runs import MS, made_run, simulated_run
from tests.loadgen.reports.made_sweeps import made_sweep


def report(made: RunRecord) -> RunReport:
    return RunReport(record=made, measures=measure_run(made))


@pytest.fixture(scope="module")
def stalled() -> RunRecord:
    """A client that sent nothing from 8.0 to 9.5 s, and then all that had been due."""
    return made_run(names=("chat", "batch"), stall_s=1.5, slo="ttft=300ms,tpot=20ms@p99")


@pytest.fixture(scope="module")
def charts(stalled: RunRecord) -> dict[str, TitledChart]:
    return {each.title: each for each in report(stalled).charts()}


def drawn(chart: TitledChart) -> list[dict[str, Any]]:
    """All rows of all the chart's data."""
    return [row for rows in chart.chart.to_dict()["datasets"].values() for row in rows]


@pytest.mark.long
def test_each_class_has_its_latencies_and_all_have_what_was_in_flight(
    charts: dict[str, TitledChart],
) -> None:
    assert list(charts) == [
        "Time to first token of chat over time",
        "Time per output token of chat over time",
        "Time to first token of batch over time",
        "Time per output token of batch over time",
        "Requests of chat over time: asked and achieved",
        "Requests of batch over time: asked and achieved",
        "Output tokens over time",
        "Requests in flight over time",
        "Distribution of latencies of chat",
        "Inter-token latency of chat",
        "Distribution of latencies of batch",
        "Inter-token latency of batch",
    ]


@pytest.mark.long
def test_coordinated_omission_shows_as_two_lines_that_part(charts: dict[str, TitledChart]) -> None:
    rows = [row for row in drawn(charts["Time to first token of chat over time"]) if "line" in row]
    middle = [row for row in rows if 8.2 < row["at_s"] < 8.8 and row["line"] == "p50"]
    calm = [row for row in rows if row["at_s"] < 7.5 and row["line"] == "p50"]

    due = [row["ms"] for row in middle if row["counted"] == "from when due"]
    sent = [row["ms"] for row in middle if row["counted"] == "from send"]
    assert min(due) > 500
    assert max(sent) < 250
    by_time: dict[float, set[float]] = {}
    for row in calm:
        by_time.setdefault(row["at_s"], set()).add(row["ms"])
    assert by_time
    assert {len(values) for values in by_time.values()} == {1}


@pytest.mark.long
def test_where_both_latencies_are_the_same_both_lines_are_seen(
    charts: dict[str, TitledChart],
) -> None:
    drawn_chart = charts["Time to first token of chat over time"].chart.to_dict()
    _, due, sent = drawn_chart["layer"]

    def counted(layer: dict[str, Any]) -> set[str]:
        return {row["counted"] for row in drawn_chart["datasets"][layer["data"]["name"]]}

    assert (counted(due), counted(sent)) == ({"from when due"}, {"from send"})
    assert due["mark"]["strokeWidth"] > 2 * sent["mark"]["strokeWidth"]


@pytest.mark.long
def test_the_stall_shows_in_what_was_due_and_not_sent(charts: dict[str, TitledChart]) -> None:
    rows = drawn(charts["Requests in flight over time"])
    waiting = {row["at_s"]: row["most"] for row in rows if row["what"] == "due, not yet sent"}

    assert max(value for at, value in waiting.items() if 8 < at < 9.6) > 20
    assert max(value for at, value in waiting.items() if not 7.8 < at < 9.8) == 0


@pytest.mark.long
def test_the_charts_count_every_token_and_every_request(
    stalled: RunRecord, charts: dict[str, TitledChart]
) -> None:
    def tokens_of(chart: TitledChart) -> float:
        return sum(row["per_s"] for row in drawn(chart)) * width_s

    times = sorted({row["at_s"] for row in drawn(charts["Output tokens over time"])})
    width_s = times[1] - times[0]
    tokens = sum(each.chunk_ns.size for each in stalled.results)
    assert tokens_of(charts["Output tokens over time"]) == pytest.approx(tokens, rel=1e-3)

    thrice = [replace(each, output_tokens=3 * each.chunk_ns.size) for each in stalled.results]
    of_thrice = {each.title: each for each in report(replace(stalled, results=thrice)).charts()}
    assert tokens_of(of_thrice["Output tokens over time"]) == pytest.approx(3 * tokens, rel=1e-3)

    rows = drawn(charts["Requests of chat over time: asked and achieved"])
    for what, count in (("due", 400), ("sent", 400)):
        rates = [row["per_s"] for row in rows if row["what"] == what]
        assert sum(rates) * width_s == pytest.approx(count, rel=1e-3)


@pytest.mark.long
def test_the_limits_of_the_slo_are_drawn_among_the_curves(charts: dict[str, TitledChart]) -> None:
    rows = drawn(charts["Distribution of latencies of chat"])

    limits = {row["words"]: row["ms"] for row in rows if "words" in row}
    assert limits == {"TTFT limit 300": 300.0, "TPOT limit 20": 20.0}
    first, *_, words = charts["Distribution of latencies of chat"].chart.to_dict()["layer"]
    assert first["mark"]["type"] == "rule"  # below the curves,
    assert words["mark"]["y"] < 0  # and its words where no curve runs


@pytest.mark.long
def test_every_chart_can_be_drawn_and_names_its_time(charts: dict[str, TitledChart]) -> None:
    for chart in charts.values():
        svg = vl_convert.vegalite_to_svg(json.dumps(styled(chart.chart).to_dict()))
        assert "emulated" in svg
        assert "<path" in svg


@pytest.mark.long
def test_the_charts_of_a_simulated_run_draw_nothing_of_its_sending() -> None:
    charts = {each.title: each for each in report(simulated_run()).charts()}

    assert list(charts) == [
        "Time to first token over time",
        "Time per output token over time",
        "Requests over time: asked and achieved",
        "Output tokens over time",
        "Requests in flight over time",
        "Distribution of latencies",
        "Inter-token latency",
    ]
    words = {value for each in charts.values() for row in drawn(each) for value in row.values()}
    assert {"from when due", "due", "completed", "in flight", "TTFT", "TPOT", "E2E"} <= words
    assert words.isdisjoint({"from send", "sent", "due, not yet sent", "TTFT, from send"})


@pytest.mark.slow
def test_a_hundred_times_the_requests_are_not_a_hundred_times_the_page() -> None:
    def size(requests: int) -> int:
        charts = report(made_run(requests=requests)).charts()
        return sum(len(json.dumps(each.chart.to_dict())) for each in charts)

    assert size(20_000) < 2.5 * size(1_000)


class Page(HTMLParser):
    """What a browser would look at: every attribute that fetches, scripts, and words."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.policy = ""
        self.data: dict[str, str] = {}
        self.boxes: list[str] = []
        self.words: list[str] = []
        self._at: str | None = None
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.fetched += [found[name] for name in ("src", "href", "action", "data") if name in found]
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"]
        if tag == "script":
            self._script, self._at = True, found.get("id")
        if "data-chart" in found:
            self.boxes.append(found["data-chart"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script, self._at = False, None

    def handle_data(self, data: str) -> None:
        if self._at is not None:
            self.data[self._at] = self.data.get(self._at, "") + data
        elif not self._script:
            self.words.append(data)


@pytest.mark.slow
def test_the_page_needs_no_network_and_holds_every_chart(stalled: RunRecord) -> None:
    evil = "</script><script>alert(1)</script>"
    header = replace(stalled.header, label=evil)
    results = [replace(each, message=evil) if each.error else each for each in stalled.results]
    text = to_html(report(replace(stalled, header=header, results=results)))
    page = Page()
    page.feed(text)

    assert page.fetched == []
    assert page.policy.startswith("default-src 'none';")
    assert "http" not in page.policy
    assert "<script>alert" not in text
    assert list(page.data) == page.boxes == [f"chart-{place}" for place in range(12)]
    for spec in page.data.values():
        assert "url" not in json.loads(spec).get("data", {})
    words = " ".join(page.words)
    assert f"UltraServe load report · {evil}" in words
    assert stalled.header.command in words


@pytest.mark.slow
def test_the_picture_is_a_png_of_all_charts_in_a_column() -> None:
    sweep = SweepReport(sweep=made_sweep())
    png = to_png(sweep)
    width, height = struct.unpack(">II", png[16:24])

    assert png.startswith(b"\x89PNG\r\n")
    assert width > 1_500
    assert height > 400 * len(sweep.charts())


def test_a_run_without_a_reply_has_no_latencies_to_draw_and_one_without_requests_nothing() -> None:
    made = made_run(requests=20, failing=1.0)
    titles = [each.title for each in report(made).charts()]
    empty = replace(made, results=[])

    assert titles == [
        "Requests over time: asked and achieved",
        "Output tokens over time",
        "Requests in flight over time",
    ]
    assert report(empty).charts() == ()
    assert "<h2>requests</h2>" in to_html(report(empty))
    assert to_png(report(empty)) == b""


@pytest.mark.long
def test_one_request_alone_can_be_drawn() -> None:
    made = made_run(requests=1, failing=0.0)
    only = replace(made.results[0], chunk_ns=np.array([made.results[0].sent_ns + MS]))

    for chart in report(replace(made, results=[only])).charts():
        vl_convert.vegalite_to_vega(json.dumps(styled(chart.chart).to_dict()))
