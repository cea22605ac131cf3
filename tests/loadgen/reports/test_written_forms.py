"""CSV and Markdown, of a run and of its requests."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from markdown_it import MarkdownIt

from loadgen.measures.measurement import measure_run
from loadgen.records.run_record import RunRecord
from loadgen.reports.requests_csv import COLUMNS, request_lines
from loadgen.reports.run_report import RunReport
from reporting.data_forms import text_cell, to_csv
from reporting.markdown import to_markdown
from tests.loadgen.reports.made_runs import made_run


def report(made: RunRecord) -> RunReport:
    return RunReport(record=made, measures=measure_run(made))


def test_the_csv_has_a_row_for_each_statistic_with_the_report_s_very_numbers() -> None:
    made = report(made_run(names=("chat", "batch")))
    rows = list(csv.DictReader(io.StringIO(to_csv(made), newline="")))
    found = {(row["class"], row["figure"], row["statistic"]): row for row in rows}

    assert len(found) == len(rows)
    for name in ("chat", "batch"):
        p99 = made.measures.classes[name].distributions["itl_ms"].percentiles[99.0]
        row = found[name, "itl_ms", "p99"]
        assert (float(row["value"]), float(row["low_95"])) == (p99.value, p99.low)
        assert (row["unit"], row["time"]) == ("ms", "emulated")
    assert float(found["all", "requests", "count"]["value"]) == 800
    assert float(found["all", "average_watts", ""]["value"]) == pytest.approx(1_000)
    assert found["all", "server_queue_ms", ""]["value"] == ""


def test_every_request_is_a_row_whose_latencies_make_the_report_s_percentiles() -> None:
    made = made_run(stall_s=1.5)
    rows = list(csv.DictReader(io.StringIO("".join(request_lines(made)), newline="")))
    measures = report(made).measures.total

    assert list(rows[0]) == list(COLUMNS)
    assert len(rows) == 400
    for column in ("ttft_ms", "ttft_from_send_ms", "tpot_ms", "e2e_ms"):
        values = [float(row[column]) for row in rows if row["error"] == ""]
        p50 = measures.distributions[column].percentiles[50.0].value
        assert np.percentile(values, 50, method="inverted_cdf") == pytest.approx(p50, rel=0.02)
    due = [float(row["due_s"]) for row in rows]
    assert due == sorted(due)
    of_id = {each.request_id: each for each in made.results}
    for row in rows:
        assert float(row["sent_s"]) == of_id[int(row["request_id"])].sent_ns / 2e9
    (failed, *_) = [row for row in rows if row["error"]]
    assert (failed["error"], failed["message"]) == ("status 503", "no room [bold]")
    assert failed["ttft_ms"] == failed["tpot_ms"] == ""


def test_a_request_that_went_twice_is_marked_in_its_row() -> None:
    made = made_run()
    made = replace(made, results=[replace(made.results[0], resent=True), *made.results[1:3]])
    rows = list(csv.DictReader(io.StringIO("".join(request_lines(made)), newline="")))

    assert [row["resent"] for row in rows] == ["True", "False", "False"]


def test_a_reply_that_broke_off_keeps_what_was_seen_of_it_and_no_requests_are_no_rows() -> None:
    made = made_run(failing=0.0)
    cut = replace(made.results[0], error="cut off", output_tokens=None)
    (row,) = csv.DictReader(io.StringIO("".join(request_lines(replace(made, results=[cut])))))
    ttft_ms = (cut.chunk_ns[0] - cut.intended_ns) / 2e6

    assert float(row["ttft_ms"]) == pytest.approx(ttft_ms)
    assert (row["tpot_ms"], row["output_tokens"], row["error"]) == ("", "", "cut off")
    assert len(list(request_lines(replace(made, results=[])))) == 1


def test_no_cell_is_a_formula_and_negative_numbers_are_still_numbers() -> None:
    made = made_run()
    evil = "=HYPERLINK(1)"
    results = [replace(each, message=evil) if each.error else each for each in made.results]
    header = replace(made.header, label="@SUM(A1)")
    made = replace(made, header=header, results=results)
    rows = list(csv.DictReader(io.StringIO("".join(request_lines(made)), newline="")))
    figures = list(csv.DictReader(io.StringIO(to_csv(report(made)), newline="")))

    assert {row["message"] for row in rows} == {"", f"'{evil}"}
    assert {row["label"] for row in figures} == {"'@SUM(A1)"}
    assert [text_cell(words) for words in ("-1.5", "+a", "-", "\tx", "a=b", "")] == [
        *("-1.5", "'+a", "'-", "'\tx", "a=b", ""),
    ]


def test_the_markdown_s_tables_are_tables_whatever_the_server_said() -> None:
    made = made_run(names=("chat", "batch"), slo="ttft=300ms@p99")
    nasty = "a | b `c` *d* <script>alert(1)</script> [e](f)\nsecond line"
    results = [replace(each, message=nasty) if each.error else each for each in made.results]
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table")
    html = tokens.render(to_markdown(report(replace(made, results=results))))

    document = report(made).document()
    assert html.count("<table>") == len(document.sections)
    assert html.count("<h2>") == len(document.sections) + bool(document.notes) + 1
    assert "<script>" not in html
    shown = "a | b `c` *d* &lt;script&gt;alert(1)&lt;/script&gt; [e](f) second line"
    assert shown in html
    assert f'<code class="language-sh">{document.command}' in html
