"""Figures with one value per run: amounts in the window, per second of the run's time."""

from collections.abc import Mapping

import numpy as np

from loadgen.measures.columns import Bools, Columns
from loadgen.measures.intervals import rate_estimate
from loadgen.measures.window import MeasuredWindow
from loadgen.records.arrays import Float64s
from loadgen.records.estimate import Estimate


def amounts_of(
    columns: Columns, window: MeasuredWindow, good: Bools | None
) -> Mapping[str, Float64s]:
    """Amounts in each cell of the window, [CELLS], by name of `definitions.RATES`.

    `columns` are of all results, also of the skipped part; `good`, [requests], are those that kept
    their SLO, None without one. `in_flight` is in ns.
    """
    rows = columns.where(columns.done)
    streamed = columns.where(columns.streamed)
    per_chunk = np.repeat(streamed.output_tokens / streamed.chunks, streamed.chunks)
    found = {
        "requests_per_s": window.amounts(rows.last_ns),
        "input_tokens_per_s": window.amounts(rows.first_ns, rows.input_tokens),
        "output_tokens_per_s": window.amounts(streamed.chunk_ns, per_chunk),
        "in_flight": window.busy_ns(columns.sent_ns, columns.ended_ns),
    }
    found["total_tokens_per_s"] = found["input_tokens_per_s"] + found["output_tokens_per_s"]
    if good is not None:
        kept = columns.where(good)
        found["goodput_per_s"] = window.amounts(kept.last_ns)
        found["goodput_tokens_per_s"] = window.amounts(kept.last_ns, kept.output_tokens)
    return found


def rates_of(
    amounts: Mapping[str, Float64s], window: MeasuredWindow, dilation: float
) -> Mapping[str, Estimate]:
    """Estimate the rates of `amounts_of`, per second of the run's time."""
    window_s = window.wall_s / dilation
    requests = float(amounts["requests_per_s"].sum())
    good = float(amounts["goodput_per_s"].sum()) if "goodput_per_s" in amounts else 0.0
    return {
        name: rate_estimate(
            cells,
            # The mean number in flight has no time in it: wall ns of requests per wall ns.
            window.wall_s * 1e9 if name == "in_flight" else window_s,
            events=good if name.startswith("goodput") else requests,
        )
        for name, cells in amounts.items()
    }
