"""Detects a run beyond the server's capacity, from its own results.

Open loop. If requests come faster than they can be served, the backlog (due and not ended) keeps
growing. The worst case without saturation, a server that can just keep up, has a random walk as
backlog, whose variance over A arrivals is about (I_a + I_c) x A, the indices of dispersion of
arrivals and completions. Growth beyond 3 deviations is not chance (a walk from 0 goes so far in 1
of 370 runs; a server with room to spare wanders much less). Growth is counted in the second half of
the time in which requests were due, and not before the first replies could have ended three times
over: a filling pipeline is no backlog. A run too short for that is judged by TTFT: from the first
third of the requests to the last it must not rise by a quarter of the time between them.

A server that fails more than 1 % of the requests, beyond chance, refuses load: saturated as well.

Closed loop: the backlog cannot grow; the sweep compares throughputs, see `no_more_throughput`.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from loadgen.measures.columns import Columns
from loadgen.measures.intervals import share_estimate
from loadgen.measures.samples import Samples
from loadgen.records.arrays import Int64s
from loadgen.records.arrival_process import arrival_process
from loadgen.records.run_record import RunRecord
from loadgen.records.sweep_record import SaturationFound, SweepPoint

DEVIATIONS: Final = 3.0
FAILED_SHARE: Final = 0.01
REQUESTS_MIN: Final = 40
"""Fewer show no trend."""

FILLS: Final = 3.0
"""Durations of an early request until the pipeline counts as full."""

LATEST_BEGIN: Final = 0.75
"""Of the time in which requests are due: a pipeline full later leaves too little for a trend."""

BEHIND_SHARE: Final = 0.25
"""Rise of TTFT per time by which a short run shows a server falling behind."""

GAIN: Final = 0.1
"""Growth of throughput over that of concurrency below which more load brings nothing."""


def saturation(record: RunRecord, *, closed: bool) -> SaturationFound:
    """Judge one run; `closed`: the varied class is a closed loop.

    Aborted requests and the skipped part are left out.
    """
    columns = Columns.of(record.results)
    columns = columns.where(~columns.aborted & (columns.intended_ns >= record.header.skip_ns))
    refused = _refused(columns)
    if refused is not None:
        return refused
    if closed:
        return SaturationFound(over=False, words="a closed loop: the backlog cannot grow")
    if len(columns) < REQUESTS_MIN:
        return SaturationFound(over=None, words=f"too short to say: {len(columns)} requests")
    first_ns, last_ns = int(columns.intended_ns[0]), int(columns.intended_ns[-1])
    early = columns.ended_ns - columns.intended_ns  # [requests]
    fill_ns = FILLS * float(np.median(early[: max(5, len(columns) // 10)]))
    begin_ns = int(max(first_ns + (last_ns - first_ns) / 2, first_ns + fill_ns))
    if begin_ns > first_ns + LATEST_BEGIN * (last_ns - first_ns):
        return _short(columns)
    return _backlog(columns, begin_ns, last_ns)


def no_more_throughput(points: Sequence[SweepPoint]) -> bool:
    """Whether the last two steps to a higher concurrency both brought less than a tenth of it.

    `points` rise in load, each load once.
    """
    if len(points) < 3:
        return False
    gains = []
    for before, after in zip(points[-3:], points[-2:], strict=False):
        low, high = before.figures.requests_per_s, after.figures.requests_per_s
        if low is None or high is None or not low.value > 0 or not high.value > 0:
            return False
        gains.append(math.log(high.value / low.value) / math.log(after.load / before.load))
    return all(gain < GAIN for gain in gains)


def _refused(columns: Columns) -> SaturationFound | None:
    """Saturated if more than FAILED_SHARE of the requests failed, beyond chance; else None."""
    if not columns.failed.any():
        return None
    share = share_estimate(Samples.in_order(columns.failed.astype(np.float64)))
    if share.low is None or share.low <= FAILED_SHARE:
        return None
    return SaturationFound(over=True, words=f"{share.value:.1%} of the requests failed")


def _backlog(columns: Columns, begin_ns: int, last_ns: int) -> SaturationFound:
    """Compare the backlog's growth from `begin_ns` to the last arrival with chance."""
    ended = np.sort(columns.ended_ns)
    due, done = _within(columns.intended_ns, begin_ns, last_ns), _within(ended, begin_ns, last_ns)
    growth = due.size - done.size
    standing = int((columns.intended_ns <= begin_ns).sum() - (ended <= begin_ns).sum())
    # What stands at the beginning may end at any time, or together: that much is chance as well.
    variance = (_dispersion(due) + _dispersion(done)) * due.size + max(standing, 0) + 1
    deviations, share = growth / math.sqrt(variance), growth / max(due.size, 1)
    over = deviations > DEVIATIONS
    words = (
        f"the backlog grew by {growth} of {due.size} requests ({deviations:.1f} deviations)"
        if over
        else f"the backlog is steady ({deviations:+.1f} deviations)"
    )
    return SaturationFound(over=over, words=words, growth_share=share, deviations=deviations)


def _short(columns: Columns) -> SaturationFound:
    """Judge by the TTFT's rise a run in which replies take about as long as all arrivals."""
    rows = columns.where(columns.streamed)
    third = len(rows) // 3
    if third < 2:
        return SaturationFound(over=None, words="too short to say: replies outlast the arrivals")
    waits = (rows.first_ns - rows.intended_ns).astype(np.float64)
    early, late = waits[:third], waits[-third:]
    between_ns = float(rows.intended_ns[-third:].mean() - rows.intended_ns[:third].mean())
    rise_ns = float(late.mean() - early.mean())
    error_ns = math.sqrt((early.var(ddof=1) + late.var(ddof=1)) / third)
    if rise_ns > BEHIND_SHARE * between_ns + DEVIATIONS * error_ns:
        share = rise_ns / between_ns
        words = f"TTFT rose by {share:.2f} s in each second of arrivals"
        # Who falls behind by r seconds a second serves 1 / (1 + r) of what comes.
        return SaturationFound(over=True, words=words, growth_share=share / (1 + share))
    return SaturationFound(over=None, words="too short to say: replies outlast the arrivals")


def _within(times_ns: Int64s, begin_ns: int, end_ns: int) -> Int64s:
    return times_ns[(times_ns > begin_ns) & (times_ns <= end_ns)]


def _dispersion(times_ns: Int64s) -> float:
    """Index of dispersion of counts; by the gaps with too few for bins; 1 for none."""
    process = arrival_process(times_ns)
    if process.dispersion is not None:
        return process.dispersion
    return 1.0 if process.gap_cv is None else process.gap_cv**2
