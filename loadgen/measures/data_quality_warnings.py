"""Warnings about the quality of a run's data: sentences with cause and cure."""

from collections.abc import Iterator
from typing import Final

from loadgen.measures.client_warnings import client_warnings
from loadgen.measures.run_measures import ClassMeasures, RunMeasures
from loadgen.measures.server_warnings import server_warnings
from loadgen.records.plain_number import counted
from loadgen.records.run_record import ClassHeader, Recount, RunRecord, SendSummary

RATE_SHORTFALL: Final = 0.02
"""Tolerated shortfall of the rate of sessions, beside chance: a late start or end of the last gap
counts as one session.
"""


def data_quality_warnings(record: RunRecord, measures: RunMeasures) -> Iterator[str]:
    """Yield every warning, naming the class where there are several."""
    yield from record.header.notes
    yield from _ending_warnings(record, measures)
    yield from client_warnings(measures)
    for header in record.header.classes:
        found = measures.classes[header.name]
        named = f"{header.name}: " if len(measures.classes) > 1 else ""
        sentences = (
            *header.notes,
            *_sending_warnings(record, header, found),
            *_counting_warnings(header, found),
            *_slo_warnings(found),
        )
        yield from (named + sentence for sentence in sentences)
    if record.end is not None:
        yield from recount_warnings(record.end.recount)
    yield from server_warnings(record, measures)


def _ending_warnings(record: RunRecord, measures: RunMeasures) -> Iterator[str]:
    end = record.end
    if record.results and not measures.total.requests:
        yield (
            f"nothing was due after the skipped part of {record.header.skip_s:g} s, so nothing is "
            "measured; a shorter --skip or a longer run cures it"
        )
    if record.cut:
        yield "the last line of this run's file was cut off and is left out: what it told is lost"
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
            f"interrupted: {counted(measures.total.aborted, 'request')} aborted and {unsent:,} not "
            "sent; tokens of aborted requests are not counted, the energy they took is"
        )


def _sending_warnings(
    record: RunRecord, header: ClassHeader, found: ClassMeasures
) -> Iterator[str]:
    summary = None if record.end is None else record.end.sending.get(header.name)
    if summary is not None:
        yield from _summary_warnings(summary)
    # Of a run that ended early only the beginning is known: another rate than the whole's.
    if summary is None or summary.interrupted or record.header.skip_s:
        return
    if record.header.simulated:  # nothing was late
        return
    drawn, kept = header.arrivals.rate_per_s, found.arrivals.rate_per_s
    # Of n sessions there are n - 1 gaps: one session more or less is no shortfall.
    if drawn is None or kept is None or found.requests < 2:
        return
    if kept < (1 - max(RATE_SHORTFALL, 1 / found.requests)) * drawn:
        cause = (
            "--max-in-flight held them back; a higher limit cures it"
            if summary.held_back
            else "the load generator was too slow; more --workers cure it"
        )
        yield (
            f"sessions began at {kept:.4g} per {header.arrivals.time} s where the schedule has "
            f"{drawn:.4g}: {cause}"
        )


def _summary_warnings(summary: SendSummary) -> Iterator[str]:
    if summary.held_back:
        yield (
            f"{counted(summary.held_back, 'request')} fell due while --max-in-flight was reached, "
            "and went late; latencies count from when they were due"
        )
    if summary.unsent and not summary.interrupted:
        yield (
            f"{counted(summary.unsent, 'request')} did not go out, because one of the same session "
            "that came before had failed"
        )
    if summary.repeated:
        yield (
            f"{counted(summary.repeated, 'session')} went out a second time, for the workload was "
            "over before the time was: the server's prefix cache may have helped; more --requests "
            "cure it"
        )
    if summary.planned_histories:
        yield (
            f"{counted(summary.planned_histories, 'later turn')} carried a planned reply instead "
            "of the served one, which could not be had in their form"
        )


def _counting_warnings(header: ClassHeader, found: ClassMeasures) -> Iterator[str]:
    if found.uncounted_replies:
        yield f"{_replies(found.uncounted_replies)} without usage: each chunk counts as one token"
    if found.short_replies and header.free_length:
        yield (
            f"{_replies(found.short_replies)} ended before the planned length, as --schema and "
            "--no-ignore-eos let them: what came is counted, and another model or sampling makes "
            "another load; without them lengths are kept"
        )
    elif found.short_replies:
        yield (
            f"{_replies(found.short_replies)} shorter than asked for: the server does not know "
            "ignore_eos, or has a limit of its own; --max-output-tokens below that limit cures it"
        )
    if found.long_replies:
        yield (
            f"{_replies(found.long_replies)} longer than asked for, by the server's usage: it does "
            "not keep to max_tokens, or counts what is not in the reply; the tokens counted again "
            "tell which"
        )
    if found.resent:
        yield (
            f"{counted(found.resent, 'request')} went twice, because the server closed a kept "
            "connection under it: latencies count from the first time"
        )
    if found.resized_prompts:
        yield (
            f"{counted(found.resized_prompts, 'prompt')} of another length by the server's count, "
            "which is what is reported"
        )
    if found.overfull_replies:
        yield (
            f"{_replies(found.overfull_replies)} in more chunks than tokens by the server's usage: "
            "it miscounts, or sends empty pieces; their ITL is the gap between chunks, and TPOT "
            "and tokens/s follow the usage"
        )
    if 0 < found.chunks < found.output_tokens:
        yield (
            f"{found.output_tokens:,} tokens came in {found.chunks:,} chunks; "
            "a chunk's tokens share its gap evenly in ITL"
        )


def _replies(count: int) -> str:
    return counted(count, "reply", "replies")


def _slo_warnings(found: ClassMeasures) -> Iterator[str]:
    if found.slo is None or not found.completed:
        return
    for bound in found.slo.bounds:
        if bound.measure not in found.distributions:
            yield (
                f"the SLO bounds {bound.measure}, and no reply had one: it is not kept, for "
                "nothing shows that it is; replies of several chunks have one"
            )


def recount_warnings(recount: Recount) -> Iterator[str]:
    """Yield every warning about a count of tokens that was recounted."""
    if recount.problem:
        by_ids = recount.replies or recount.without_usage
        which = "replies without token ids were not" if by_ids else "no reply's tokens were"
        yield f"{which} counted again: {recount.problem}"
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
    if recount.without_usage:
        yield (
            f"{recount.without_usage} replies without usage were counted by us: "
            f"{recount.without_usage_tokens:,} tokens, where their "
            f"{recount.without_usage_chunks:,} chunks are reported as so many: figures by the "
            "token are off by that ratio; a server that sends usage with its streams cures it"
        )
