"""Measures per request or per gap: values in the run's time, with their place in time.

Neighbours share queues and batches, so they are not independent (see `loadgen.measures.intervals`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadgen.measures.columns import Columns
from loadgen.records.arrays import Float64s, Int64s

CELLS: Final = 120
"""Pieces of time; 12 of them are a block of `intervals.BLOCKS`."""

OF_A_REPLY: Final = (
    "ttft_ms",
    "ttft_from_send_ms",
    "tpot_ms",
    "e2e_ms",
    "e2e_from_send_ms",
    "ntpot_ms",
)
"""Latencies with at most one value per reply."""

OF_THE_CLIENT: Final = ("ttft_from_send_ms", "e2e_from_send_ms", "queueing_ms")
"""Latencies that tell of the load generator's own delay, which a simulated run has not."""

EDGE_SAMPLES: Final = 200_000  # places of so many samples say where the cells' edges lie


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Values, float64[samples], and each one's cell in time, int64[samples], from 0 on.

    Cells hold about equally many samples; there are CELLS of them, or as many as samples.
    """

    values: Float64s
    cell: Int64s
    cells: int

    @classmethod
    def in_order(cls, values: Float64s) -> "Samples":
        """Of values in the order of time."""
        cells = min(CELLS, values.size)
        cell = np.arange(values.size) * cells // max(values.size, 1)
        return cls(values=values, cell=cell, cells=cells)

    @classmethod
    def at(cls, values: Float64s, at_ns: Int64s) -> "Samples":
        """Of values in any order, at their times, int64[samples]."""
        cells = min(CELLS, values.size)
        if not cells:
            return cls.in_order(values)
        some = np.sort(at_ns[:: max(1, at_ns.size // EDGE_SAMPLES)])
        edges = some[np.arange(1, cells) * some.size // cells]  # [cells - 1], rising
        return cls(values=values, cell=np.searchsorted(edges, at_ns, side="right"), cells=cells)

    def __len__(self) -> int:
        return self.values.size


def samples_of(
    columns: Columns, dilation: float, *, simulated: bool = False
) -> Mapping[str, Samples]:
    """Samples by name of `definitions.DISTRIBUTIONS`, empty ones left out.

    Of completed requests; `queueing_ms` of all sent ones. Durations are in ms of the run's time, a
    wall second of which is 1 / `dilation`. A `simulated` run has none of OF_THE_CLIENT.
    """
    rows = columns.where(columns.streamed)
    found = {name: values_ms(rows, name, dilation) for name in OF_A_REPLY}
    tpot_ms, ntpot_ms = found["tpot_ms"], found["ntpot_ms"]
    # All chunks in one nanosecond would be an endless speed.
    found["interactivity"] = 1e3 / tpot_ms[tpot_ms > 0]
    found["interactivity_e2e"] = 1e3 / ntpot_ms[ntpot_ms > 0]
    found["queueing_ms"] = values_ms(columns, "queueing_ms", dilation)
    samples = {
        name: Samples.in_order(values)
        for name, values in found.items()
        if not (simulated and name in OF_THE_CLIENT)
    }
    gaps_ms, at_ns, _ = token_gaps(rows, dilation)
    samples["itl_ms"] = Samples.at(gaps_ms, at_ns)
    return {name: each for name, each in samples.items() if len(each)}


def values_ms(columns: Columns, name: str, dilation: float) -> Float64s:
    """A latency of each of `columns` in ms of the run's time, [requests].

    `name` is one of `definitions.DISTRIBUTIONS` with a value per request that ends in `_ms`. TPOT
    is of requests with a time between tokens only. Without a reply all but queueing is undefined.
    """
    rows = columns.where(columns.spread) if name == "tpot_ms" else columns
    from_ns, to_ns = {
        "ttft_ms": (rows.intended_ns, rows.first_ns),
        "ttft_from_send_ms": (rows.sent_ns, rows.first_ns),
        "tpot_ms": (rows.first_ns, rows.last_ns),
        "e2e_ms": (rows.intended_ns, rows.last_ns),
        "e2e_from_send_ms": (rows.sent_ns, rows.last_ns),
        "ntpot_ms": (rows.intended_ns, rows.last_ns),
        "queueing_ms": (rows.intended_ns, rows.sent_ns),
    }[name]
    found_ms: Float64s = (to_ns - from_ns) / (1e6 * dilation)
    if name == "tpot_ms":
        found_ms /= rows.output_tokens - 1
    if name == "ntpot_ms":
        found_ms /= np.maximum(rows.output_tokens, 1)
    return found_ms


def token_gaps(columns: Columns, dilation: float) -> tuple[Float64s, Int64s, Int64s]:
    """Every ITL in ms of the run's time, its end in wall ns, and its request's row.

    All are [gaps], one request after another, of requests with a time between tokens.
    """
    rows = np.flatnonzero(columns.spread)
    kept = columns.where(columns.spread)
    if not rows.size:
        return np.empty(0), np.empty(0, dtype=np.int64), rows
    # A chunk's tokens share its gap evenly: n - 1 steps in c - 1 gaps. More chunks than tokens
    # leave every gap what it was: it did pass between two of them.
    share = np.minimum(1.0, (kept.chunks - 1) / (kept.output_tokens - 1))  # [requests]
    within = np.ones(kept.chunk_ns.size - 1, dtype=np.bool_)  # [chunks - 1]
    within[np.cumsum(kept.chunks)[:-1] - 1] = False  # from one request to the next is no gap
    gaps_ns = np.diff(kept.chunk_ns)[within]  # [gaps]
    gaps_ms = np.repeat(share / (1e6 * dilation), kept.chunks - 1)  # [gaps]
    gaps_ms *= gaps_ns  # in place: a long run has tens of millions
    return gaps_ms, kept.chunk_ns[1:][within], np.repeat(rows, kept.chunks - 1)
