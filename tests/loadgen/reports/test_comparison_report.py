import csv
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from loadgen.reports.comparison_report import ComparisonReport
from reporting.data_forms import to_csv, to_json
from reporting.html import to_html
from reporting.markdown import to_markdown
from reporting.terminal import print_report
from tests.loadgen.reports.made_comparisons import ALL, OF_CHAT, SAME, UNKNOWN, compared


def printed(made: ComparisonReport, *, width: int = 110) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        print_report(made, console)
    return captured.get()


def test_it_says_which_figures_differ_beyond_noise_and_by_how_much() -> None:
    text = " ".join(printed(ALL).split())

    assert "UltraServe comparison: after against before" in text
    assert "of 4 figures 1 better, 1 worse, 1 within noise, 1 unknown" in text
    assert "TTFT p99 ms 200 250 +25.0 % +10.0 % .. +40.0 % 0.002 worse" in text
    assert "output tokens/s 1/s 1,000 1,000 0.0 % -5.0 % .. +5.0 % 0.900 within noise" in text
    assert "average power, facility W - 900 - - - unknown" in text
    assert "differences of chat, in emulated time" in text
    assert "TPOT p50 ms 20 18 -10.0 %" in text


def test_it_names_settings_that_are_apart_and_how_noise_was_found() -> None:
    text = " ".join(printed(ALL).split())

    assert "seed differs a: 1 b: 2" in text
    assert "1 run, 400 requests completed, 2 failed" in text
    assert "method blocks of neighbours, drawn again" in text
    assert "! one run a side" in text


def test_a_narrow_terminal_keeps_the_verdicts() -> None:
    lines = printed(ALL, width=72).splitlines()

    assert max(map(len, lines)) <= 72
    assert any("TTFT p99" in line and "+25.0 %" in line and "worse" in line for line in lines)


def test_equal_sides_are_said_to_be_equal_and_labels_that_are_alike_are_left_out() -> None:
    text = printed(compared(SAME, labels=("x", "x")))

    assert "UltraServe comparison: b against a" in text
    assert "none of 1 figure differs beyond noise" in text


def test_what_is_unknown_is_not_counted_among_what_does_not_differ() -> None:
    assert "none of 2 figures differs beyond noise; 1 unknown" in printed(
        compared(SAME, SAME, UNKNOWN)
    )
    assert "1 unknown, no figure can be compared" in printed(compared(UNKNOWN))


def test_sides_that_had_other_traffic_are_told_so_before_any_verdict() -> None:
    apart = {"seed": ("1", "2"), "chat: workload": ("512 in", "64 in"), "arrivals": ("4/s", "8/s")}
    made = replace(compared(OF_CHAT).comparison, apart=apart)
    head = printed(ComparisonReport(comparison=made)).splitlines()[2]

    assert head.startswith("not the same traffic (workload, arrivals differ): of 1 figure 1 better")
    assert "not the same traffic" not in printed(compared(OF_CHAT))


def test_json_and_csv_have_both_values_the_interval_and_the_verdict() -> None:
    fields = json.loads(to_json(ALL))
    rows = list(csv.DictReader(io.StringIO(to_csv(ALL), newline="")))

    assert fields["beyond_noise"] == 2
    assert fields["settings_apart"] == {"seed": ["1", "2"]}
    first = fields["differences"][0]
    assert (first["figure"], first["unit"], first["verdict"]) == ("ttft_ms", "ms", "worse")
    assert (first["relative"], first["low"], first["high"]) == (0.25, 0.1, 0.4)
    assert [row["verdict"] for row in rows] == ["worse", "within noise", "unknown", "better"]
    assert (rows[0]["a"], rows[0]["b"], rows[0]["value"]) == ("200.0", "250.0", "0.25")
    assert rows[2]["a"] == rows[2]["value"] == ""


@pytest.mark.long
def test_the_chart_has_what_can_be_compared_and_the_page_shows_all() -> None:
    (chart,) = ALL.charts()
    drawn = json.dumps(chart.chart.to_dict())

    assert '"figure": "TTFT p99", "relative": 0.25, "low": 0.1, "high": 0.4' in drawn
    assert "average power" not in drawn
    assert compared(UNKNOWN).charts() == ()
    assert '<span class="bad">worse</span>' in to_html(ALL)
    assert "| TTFT p99 | ms | 200 | 250 | +25.0 % |" in to_markdown(ALL)
