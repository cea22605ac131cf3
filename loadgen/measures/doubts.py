"""Sentences on whatever makes a figure mean less than it seems to, each with its cure."""

from collections.abc import Iterator
from typing import Final

from loadgen.measures.energy import metered_window
from loadgen.measures.run_measures import ClassMeasures, RunMeasures
from loadgen.records.run_record import ClassHeader, RunRecord

METERED_TOLERANCE: Final = 0.05  # the meters' window may differ by this share from the measured one

BUSY_SHARE: Final = 0.9
"""Of a core. A loop that is busier queues its own work: at 0.9 the wait is 4.5 times the work for
even work at random times (rho / (2 (1 - rho)), the M/D/1 queue)."""

LOOP_LAG_MS: Final = 2.0
"""Times are meant to be right within 1 ms or 2 %; the loop's timers add up to 1 ms of their own."""
LOOP_LAG_SHARE: Final = 0.02

RATE_SHORTFALL: Final = 0.02
"""Sessions begun at a rate lower than asked by more than this. Beside it stands what chance makes:
a late start or end of the last gap counts as one session."""


def doubts(record: RunRecord, measures: RunMeasures) -> Iterator[str]:
    """Give every reason to doubt a figure; of a class by its name where there are several."""
    yield from record.header.notes
    yield from _ending_doubts(record, measures)
    yield from _client_doubts(measures)
    for header in record.header.classes:
        found = measures.classes[header.name]
        named = f"{header.name}: " if len(measures.classes) > 1 else ""
        sentences = (
            *header.notes,
            *_sending_doubts(record, header, found),
            *_counting_doubts(found),
            *_slo_doubts(found),
        )
        yield from (named + sentence for sentence in sentences)
    yield from _recount_doubts(record)
    yield from _server_doubts(record, measures)


def is_saturated(measures: RunMeasures) -> bool:
    """Say whether the load generator itself was too slow for its figures to be the server's."""
    return _too_busy(measures) or _too_late(measures)


def _too_busy(measures: RunMeasures) -> bool:
    return measures.cpu_share is not None and measures.cpu_share >= BUSY_SHARE


def _too_late(measures: RunMeasures) -> bool:
    lag_ms = measures.loop_lag_p99_ms
    if lag_ms is None:
        return False
    ttft = measures.total.distributions.get("ttft_from_send_ms")
    wall_ms = 0.0 if ttft is None else ttft.percentiles[99.0].value * measures.dilation
    return lag_ms > max(LOOP_LAG_MS, LOOP_LAG_SHARE * wall_ms)


def _client_doubts(measures: RunMeasures) -> Iterator[str]:
    if _too_busy(measures):
        yield (
            f"the load generator used {100 * (measures.cpu_share or 0):.0f} % of a core in its "
            "busiest process: it may be what is slow; more --workers cure it"
        )
    if _too_late(measures):
        yield (
            f"the load generator's event loop was {measures.loop_lag_p99_ms:.1f} wall ms late at "
            "p99: latencies are too long by up to that; more --workers, or cores that nothing "
            "else uses, cure it"
        )


def _ending_doubts(record: RunRecord, measures: RunMeasures) -> Iterator[str]:
    end = record.end
    if end is None:
        yield (
            "the file of this run has no end, as after a kill: what is in it is reported; replies "
            "under way then, lag, energy and what was not sent are unknown"
        )
        return
    if end.problem:
        yield f"the run ended before its time: {end.problem}"
    if end.interrupted:
        unsent = sum(summary.unsent for summary in end.sending.values())
        yield (
            f"interrupted: {measures.total.aborted} requests were aborted and {unsent} not sent; "
            "tokens of aborted requests are not counted, the energy they took is"
        )


def _sending_doubts(record: RunRecord, header: ClassHeader, found: ClassMeasures) -> Iterator[str]:
    summary = None if record.end is None else record.end.sending.get(header.name)
    if summary is not None:
        if summary.held_back:
            yield (
                f"{summary.held_back} requests were due while --max-in-flight was reached, and "
                "sent late; their latencies count from when they were due"
            )
        if summary.unsent and not summary.interrupted:
            yield (
                f"{summary.unsent} requests were not sent, because one of their session that they "
                "wait for had failed"
            )
        if summary.repeated:
            yield (
                f"{summary.repeated} sessions were sent that had been sent before, for the "
                "workload was over before the time was: the server's prefix cache may have "
                "helped; more --requests cure it"
            )
        if summary.planned_histories:
            yield (
                f"{summary.planned_histories} later turns carried a planned reply instead of the "
                "served one, which could not be had in their form"
            )
    asked, kept = header.arrivals.rate_per_s, found.arrivals.rate_per_s
    # Of n sessions there are n - 1 gaps: one session more or less is no shortfall.
    if asked is not None and kept is not None and found.requests > 1:
        tolerated = max(RATE_SHORTFALL, 1 / found.requests)
        if not record.header.skip_s and kept < (1 - tolerated) * asked:
            yield (
                f"sessions began at {kept:.4g} per {header.arrivals.time} s where {asked:.4g} were "
                "asked: the load generator, or --max-in-flight, held them back; more --workers or "
                "a higher limit cure it"
            )


def _counting_doubts(found: ClassMeasures) -> Iterator[str]:
    if found.uncounted_replies:
        yield (
            f"{found.uncounted_replies} replies came without usage: "
            "each of their chunks is counted as one token"
        )
    if found.short_replies:
        yield (
            f"{found.short_replies} replies have another length than asked for; "
            "the server may not know ignore_eos"
        )
    if found.resized_prompts:
        yield (
            f"{found.resized_prompts} prompts have another length by the server's count; "
            "the server's is reported"
        )
    if found.chunks and found.chunks != found.output_tokens:
        yield (
            f"{found.output_tokens:,} tokens came in {found.chunks:,} chunks; "
            "a chunk's tokens share its gap evenly in ITL"
        )


def _slo_doubts(found: ClassMeasures) -> Iterator[str]:
    if found.slo is None or not found.completed:
        return
    for bound in found.slo.bounds:
        if bound.measure not in found.distributions:
            yield (
                f"the SLO bounds {bound.measure}, and no reply had one: it is not kept, for "
                "nothing shows that it is; replies of several chunks have one"
            )


def _recount_doubts(record: RunRecord) -> Iterator[str]:
    if record.end is None:
        return
    recount = record.end.recount
    if recount.problem:
        yield f"no reply's tokens were counted again: {recount.problem}"
    if recount.apart_by_ids:
        yield (
            f"of {recount.by_ids} replies that came with their token ids {recount.apart_by_ids} "
            "have another number of them than the server's usage says: the server miscounts, or "
            "a part of it does; compare with its own metrics before tokens/s are believed. The "
            "usage is reported"
        )
    retokenised = recount.apart - recount.apart_by_ids
    if retokenised:
        yield (
            f"of {recount.replies - recount.by_ids} replies whose text was tokenised again "
            f"{retokenised} have another count than the server's usage (all that were counted "
            f"again: {recount.counted_tokens:,} tokens against {recount.usage_tokens:,}): text "
            "need not lead back to the same tokens, and special ones and an end of sequence are "
            "not in it; token ids beside the reply, or --tokenizer with the model's own, tell "
            "that from a server that miscounts. The usage is reported"
        )


def _server_doubts(record: RunRecord, measures: RunMeasures) -> Iterator[str]:
    server = metered_window(record)
    if server.start.problem:
        yield (
            f"the server has no /metrics to read ({server.start.problem}): "
            "times are wall times, energy and chips are unknown"
        )
    elif record.end is not None and server.end.problem:
        yield f"the server's /metrics could not be read at the end: {server.end.problem}"
    if server.dilation_changed:
        yield (
            f"the server's dilation went from {server.start.dilation:g} to "
            f"{server.end.dilation:g} during the run: no emulated figure here is right"
        )
    if record.header.skip_s and record.skipped is None and not server.start.problem:
        yield (
            "the server's meters were not read when the skipped part was over: "
            "energy over the measured window is unknown"
        )
    if measures.lag_s:
        yield (
            f"the emulation's host was late by {measures.lag_s:.3f} emulated s in all: "
            "latencies are too long by a part of that; a higher dilation cures it"
        )
    metered_s = measures.energy.metered_s
    window_s = measures.window_s
    if metered_s is not None and window_s is not None:
        apart_s = abs(metered_s - window_s)
        if apart_s > METERED_TOLERANCE * window_s:
            yield (
                f"energy was metered over {metered_s:.3f} s, and tokens counted over "
                f"{window_s:.3f} s: watts and joules are of a somewhat other time"
            )
    if server.emulated and any(each.arrivals.time == "wall" for each in record.header.classes):
        yield (
            "arrivals were asked for in wall time and everything else is in emulated time: "
            f"a rate of 1 per wall s is {measures.dilation:g} per emulated s"
        )
