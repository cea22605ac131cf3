"""The report as a person reads it in a terminal: what was run, the figures, and the notes."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.percentiles import Percentiles
from loadgen.report import Report

UNKNOWN = "not reported by the server"


def print_report(report: Report, console: Console) -> None:
    """Print the whole report."""
    time = report.time_word
    console.print("UltraServe load report", style="bold")
    console.print(_facts((*_server_facts(report), *_workload_facts(report))))
    console.print(_latencies(report, f"latency, {time} ms"))
    console.print(_facts((*_throughput(report), *_power(report))))
    for note in report.notes():
        console.print(f"note: {note}", highlight=False, markup=False)
    console.print(f"repeat: {report.command}", highlight=False, markup=False)


def _facts(rows: tuple[tuple[str, str], ...]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))  # as it is: a server's words may look like markup
    return table


def _server_facts(report: Report) -> Iterator[tuple[str, str]]:
    yield "server", f"{report.workload.url}, model {report.workload.model}"
    for label in ("system", "time_model", "weights", "routing"):
        yield label.replace("_", " "), report.info(label) or UNKNOWN
    if report.server.emulated:
        dilation, clock = report.server.dilation, report.info("clock") or "clock"
        yield "clock", f"{clock}: 1 emulated second is {dilation:g} wall seconds"
        lag_s, window_s = report.measures.lag_s, report.measures.window_s
        if lag_s is None or window_s is None:
            yield "lag", UNKNOWN
        else:
            share = 100 * lag_s / window_s
            yield "lag", f"{lag_s:.3f} emulated s ({share:.2f} % of the window)"
    else:
        yield "clock", f"wall time; a dilation is {UNKNOWN}"


def _workload_facts(report: Report) -> Iterator[tuple[str, str]]:
    workload, measures, cuts = report.workload, report.measures, report.cuts
    yield "workload", f"{workload.trace}, {workload.requests} requests, seed {workload.seed}"
    yield "arrivals", workload.arrivals
    yield "prompts", workload.prompts
    yield (
        "lengths",
        "; ".join(
            _cut(name, cap, requests, tokens)
            for name, cap, requests, tokens in (
                ("input", cuts.max_input_tokens, cuts.input_cut_requests, cuts.input_tokens_cut),
                (
                    "output",
                    cuts.max_output_tokens,
                    cuts.output_cut_requests,
                    cuts.output_tokens_cut,
                ),
            )
        ),
    )
    aborted = f", {measures.aborted_requests} aborted" if measures.aborted_requests else ""
    yield (
        "requests",
        f"{measures.completed_requests} completed, {measures.failed_requests} failed{aborted}",
    )
    for kind, count in measures.errors.items():
        yield "", f"{count} x {kind}: {report.example_errors.get(kind, '')}"


def _cut(name: str, cap: int | None, requests: int, tokens: int) -> str:
    if cap is None:
        return f"{name} as in the trace"
    return f"{name} cut to {cap:,} in {requests} requests ({tokens:,} tokens less)"


def _latencies(report: Report, title: str) -> Table:
    measures = report.measures
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in ("p50", "p90", "p99"):
        table.add_column(name, justify="right")
    for name, percentiles in (
        ("TTFT, from when due", measures.ttft_ms),
        ("TTFT, from send", measures.ttft_from_send_ms),
        ("TPOT", measures.tpot_ms),
        ("ITL", measures.itl_ms),
        ("E2E, from when due", measures.e2e_ms),
        ("sent after due", measures.send_delay_ms),
    ):
        table.add_row(name, *_cells(percentiles))
    return table


def _cells(percentiles: Percentiles) -> tuple[str, ...]:
    values = (percentiles.p50, percentiles.p90, percentiles.p99)
    return tuple("-" if value is None else f"{value:,.2f}" for value in values)


def _throughput(report: Report) -> Iterator[tuple[str, str]]:
    measures = report.measures
    yield "tokens", f"{measures.input_tokens:,} in, {measures.output_tokens:,} out"
    if measures.wall_s is not None and measures.window_s is not None:
        wall = f" ({measures.wall_s:,.2f} wall s)" if report.server.emulated else ""
        yield "window", f"{measures.window_s:,.3f} {report.time_word} s{wall}"
    yield "output tokens/s", _figure(measures.output_tokens_per_s, "no request completed")
    yield "tokens/s/chip", _figure(measures.tokens_per_s_per_chip, UNKNOWN)


def _power(report: Report) -> Iterator[tuple[str, str]]:
    measures, provisioned_watts = report.measures, report.server.provisioned_watts
    yield "average watts", _figure(measures.average_watts, UNKNOWN, " W at the facility")
    yield "", _figure(measures.chip_average_watts, UNKNOWN, " W at the chips")
    yield "joules/output token", _figure(measures.joules_per_output_token, UNKNOWN, digits=4)
    yield (
        "output tokens/s per MW",
        _figure(measures.output_tokens_per_s_per_facility_mw, UNKNOWN, " at the facility"),
    )
    budget = "" if provisioned_watts is None else f" of the {provisioned_watts:,.0f} W provisioned"
    yield "", _figure(measures.output_tokens_per_s_per_provisioned_mw, UNKNOWN, budget)


def _figure(value: float | None, unknown: str, suffix: str = "", *, digits: int = 1) -> str:
    return unknown if value is None else f"{value:,.{digits}f}{suffix}"
