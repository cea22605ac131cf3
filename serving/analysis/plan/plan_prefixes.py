"""Beginnings that a trace's prompts share: what a cache could find of them, and who goes where.

A conversation is what requests share beyond what many requests begin with.
"""

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from loadgen.workloads.traffic import PromptBlocks, Traffic
from serving.analysis.steady_state.request_shape import RequestShape

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]

COMMON_SHARE: Final = 0.1
COMMON_LEAST: Final = 32
"""Of all requests, and requests: what more of them begin with, as a system prompt, is assumed to be
of no conversation. Copies share it, and a rank holds it once.
"""
WARM_SHARE: Final = 0.9
"""Of what the peak's prompts could find: so much is sent before the judged requests."""
LEAD_WINDOWS_MAX: Final = 2.0
"""Lengths of the peak that this may take."""
CONVERSATION_PART: Final = 0.05
"""Of a replica's requests: no larger conversation stays together, so that loads stay even."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefixes:
    """What the requests of a trace's peak share with those before them.

    Attributes:
        cached_tokens: of each prompt what a cache without bounds, of all requests of the trace so
            far, finds: [requests of the peak].
        common_tokens: those of them that are common, likewise.
        share: of the peak's prompt tokens that are cached so.
        lead_s: of traffic before the judged requests, in which caches fill.
        lead_share: of these hits, what a cache without bounds finds that is empty before `lead_s`.
    """

    cached_tokens: Int64s
    common_tokens: Int64s
    share: float
    lead_s: float
    lead_share: float

    @classmethod
    def of(cls, traffic: Traffic, begin_s: float, end_s: float) -> Self | None:
        """Those of requests from `begin_s` to before `end_s`; None where no blocks are known."""
        blocks = traffic.blocks
        if blocks is None:
            return None
        within = (traffic.arrival_s >= begin_s) & (traffic.arrival_s < end_s)
        previous = _previous(blocks)
        cached = _found(traffic, previous >= 0)
        is_common = ~_is_of_few(blocks, uncommon(traffic))
        common = _found(traffic, (previous >= 0) & is_common)
        # Of each piece that is found, the time before the window at which it came last.
        found = (previous >= 0) & within[_request_of(blocks)]
        sent_s = np.maximum(0.0, begin_s - traffic.arrival_s[previous[found]])
        by_lead = np.argsort(sent_s, kind="stable")
        sent_s, hits = sent_s[by_lead], _piece_tokens(blocks)[found][by_lead].cumsum()
        lead_s, lead_share = 0.0, 1.0
        if len(hits):
            enough = int(hits.searchsorted(WARM_SHARE * hits[-1]))
            lead_s = min(float(sent_s[enough]), LEAD_WINDOWS_MAX * (end_s - begin_s))
            in_time = int(sent_s.searchsorted(lead_s, side="right"))
            lead_share = float(hits[in_time - 1] / hits[-1]) if in_time else 0.0
        return cls(
            cached_tokens=cached[within],
            common_tokens=common[within],
            share=float(cached[within].sum() / traffic.prompt_tokens[within].sum()),
            lead_s=lead_s,
            lead_share=lead_share,
        )

    def shape(self, shape: RequestShape) -> RequestShape:
        """The mean request, its cached tokens known."""
        cached = min(round(float(self.cached_tokens.mean())), shape.prompt_tokens - 1)
        common = min(round(float(self.common_tokens.mean())), cached)
        return replace(shape, cached_tokens=cached, common_tokens=common)


def uncommon(traffic: Traffic) -> float:
    """The most requests that a conversation's beginning has; more have what is common."""
    return max(COMMON_LEAST, COMMON_SHARE * len(traffic))


def conversations(traffic: Traffic, most: float) -> Int64s:
    """The number of each request's conversation, from 0 without gaps, [requests].

    Requests are of one where they share a beginning that at most `most` requests have; a request
    without such a beginning is alone.
    """
    requests = np.arange(len(traffic))
    blocks = traffic.blocks
    if blocks is None:
        return requests
    names, of_name = np.unique(blocks.names, return_inverse=True)
    place = np.flatnonzero(_is_of_few(blocks, most))[::-1]  # a request's first comes last
    key = len(names) + requests
    key[_request_of(blocks)[place]] = of_name[place]
    number: Int64s = np.unique(key, return_inverse=True)[1]
    return number


def copied(traffic: Traffic, which: Int64s, copy: Int64s) -> PromptBlocks | None:
    """Blocks of `copy` number 0, 1, ... of the requests `which`: both [copies].

    The first copy keeps its names; others share with it what is common.
    """
    blocks = traffic.blocks
    if blocks is None:
        return None
    names, number = np.unique(blocks.names, return_inverse=True)
    of_few = _is_of_few(blocks, uncommon(traffic))
    numbered = replace(blocks, names=np.where(of_few, number, number - len(names)))
    made = numbered.chosen(which)
    own = np.where(made.names < 0, 0, copy[_request_of(made)] * len(names))
    return replace(made, names=made.names + own)


def _request_of(blocks: PromptBlocks) -> Int64s:
    """Of each name, [names]."""
    counts = np.diff(blocks.begin)
    return np.repeat(np.arange(len(counts)), counts)


def _is_of_few(blocks: PromptBlocks, most: float) -> Bools:
    """Whether at most `most` requests have it, for each name, [names]."""
    _, number, count = np.unique(blocks.names, return_inverse=True, return_counts=True)
    is_of_few: Bools = count[number] <= most
    return is_of_few


def _previous(blocks: PromptBlocks) -> Int64s:
    """The last request before that has the same name, or -1: [names]."""
    order = np.argsort(blocks.names, kind="stable")
    request, names = _request_of(blocks)[order], blocks.names[order]
    previous = np.full(len(names), -1)
    again = np.flatnonzero(names[1:] == names[:-1]) + 1
    previous[order[again]] = request[again - 1]
    return previous


def _piece_tokens(blocks: PromptBlocks) -> Int64s:
    """Tokens of each named piece, [names]."""
    begin = np.append(0, blocks.end_tokens[:-1])
    begin[blocks.begin[:-1][np.diff(blocks.begin) > 0]] = 0
    tokens: Int64s = blocks.end_tokens - begin
    return tokens


def _found(traffic: Traffic, is_found: Bools) -> Int64s:
    """Tokens up to the end of a prompt's last piece that `is_found` [names]: [requests].

    Its last token is computed in any case.
    """
    assert traffic.blocks is not None
    blocks, tokens = traffic.blocks, np.zeros(len(traffic), dtype=np.int64)
    np.maximum.at(tokens, _request_of(blocks)[is_found], blocks.end_tokens[is_found])
    return np.minimum(tokens, traffic.prompt_tokens - 1)
