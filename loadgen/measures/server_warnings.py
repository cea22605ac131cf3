"""Warnings about the server's clock, meters and prefix cache."""

from collections.abc import Iterator
from typing import Final

from loadgen.measures.energy import metered_window
from loadgen.measures.run_measures import RunMeasures
from loadgen.records.run_record import RunRecord

METERED_TOLERANCE: Final = 0.05  # the meters' window may differ by this share from the measured one

HITS_TOLERANCE: Final = 0.1
"""Of prompt tokens. Prompts that share nothing may agree in up to 15 tokens by chance: 10 % of one
of 150.
"""

TEMPLATE_TOKENS: Final = 64
"""*Assumed*: tokens of a chat's template before the first word, the same in every prompt; templates
of several models have 3 to 40.
"""


def server_warnings(record: RunRecord, measures: RunMeasures) -> Iterator[str]:
    """Yield each effect of clock, meters and prefix cache on the figures, with the cure."""
    server = metered_window(record)
    if server.start.problem:
        yield (
            f"the server has no /metrics to read ({server.start.problem}): "
            "times are wall times, energy and chips are unknown"
        )
    elif record.end is not None and server.end.problem:
        yield f"the server's /metrics could not be read at the end: {server.end.problem}"
    if server.dilation_changed and not record.epochs:
        yield (
            f"the server's dilation went from {server.start.dilation:g} to "
            f"{server.end.dilation:g} during the run: no emulated figure here is right"
        )
    unread = record.skipped is None or record.skipped.problem
    if record.header.skip_s and unread and not server.start.problem:
        why = f" ({record.skipped.problem})" if record.skipped is not None else ""
        yield (
            f"the server's meters were not read when the skipped part was over{why}: "
            "energy over the measured window is unknown"
        )
    if measures.lag_s:
        yield (
            f"the emulation's host was late by {measures.lag_s:.3f} emulated s in all: "
            "latencies are too long by a part of that; a higher dilation cures it"
        )
    if server.emulated and any(each.arrivals.time == "wall" for each in record.header.classes):
        yield (
            "arrivals were asked for in wall time and everything else is in emulated time: "
            f"a rate of 1 per wall s is {measures.dilation:g} per emulated s"
        )
    yield from _metering_warnings(measures)
    yield from _cache_warnings(record, measures)


def _metering_warnings(measures: RunMeasures) -> Iterator[str]:
    metered_s, window_s = measures.energy.metered_s, measures.window_s
    if metered_s is None or window_s is None:
        return
    if abs(metered_s - window_s) > METERED_TOLERANCE * window_s:
        yield (
            f"the server's meters ran for {metered_s:.3f} s around a measured window of "
            f"{window_s:.3f} s, so time without load is in them: watts are the average over all of "
            "it, and energy per token and tokens/s/MW take that average for the window's. A longer "
            "run, without a pause between its warm-up and its first request, cures it"
        )


def _cache_warnings(record: RunRecord, measures: RunMeasures) -> Iterator[str]:
    """Compare the server's prefix hits with those possible from an empty cache."""
    headers = record.header.classes
    repeated = record.end is not None and any(
        summary.repeated for summary in record.end.sending.values()
    )  # which has a warning of its own
    planned = sum(each.input_tokens or 0 for each in headers)
    if repeated or not planned or any(each.reused_tokens is None for each in headers):
        return
    reused = sum(each.reused_tokens or 0 for each in headers)
    if record.header.skip_s and reused:
        return  # after the skipped part what is shared may be more than in the whole
    total = measures.total
    found = measures.energy.prefix_hit_share
    if total.cached_tokens is not None and total.input_tokens:
        found = total.cached_tokens / total.input_tokens
    chats = sum(measures.classes[each.name].completed for each in headers if each.api == "chat")
    templates = chats * TEMPLATE_TOKENS / max(1, total.input_tokens)
    if found is not None and found > reused / planned + templates + HITS_TOLERANCE:
        yield (
            f"{100 * found:.0f} % of prompt tokens were found in the server's prefix cache, and "
            f"the workload itself shares {100 * reused / planned:.0f} %: the server had seen such "
            "prompts before, as it has when a run is repeated with the same --seed. TTFT, "
            "throughput and energy are those of a warm cache; another --seed or a restart of the "
            "server cures it"
        )
