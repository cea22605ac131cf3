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
KEPT_S: Final = (*(2.0**power for power in range(13)), float("inf"))
"""Times for which a cache may keep what is not used: the steady state takes the nearest."""
CONVERSATION_PART: Final = 0.05
"""Of a replica's requests: no larger conversation stays together, so that loads stay even."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefixes:
    """What the requests of a trace's peak share with those before them.

    Attributes:
        prompt_tokens: [requests of the peak].
        cached_tokens: of each prompt what a cache of all requests of the trace so far finds that
            keeps it for one of `KEPT_S` after its last use: [times, requests of the peak]. The last
            one is without bounds.
        common_tokens: those that are common, in mean.
        share: of the peak's prompt tokens that are cached so.
        lead_s: of traffic before the judged requests, in which caches fill.
        lead_share: of these hits, what a cache without bounds finds that is empty before `lead_s`.
    """

    prompt_tokens: Int64s
    cached_tokens: Int64s
    common_tokens: float
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
        request = _request_of(blocks)
        unused_s = np.where(
            previous >= 0, traffic.arrival_s[request] - traffic.arrival_s[previous], np.nan
        )
        cached = np.array([_found(traffic, unused_s <= kept_s)[within] for kept_s in KEPT_S])
        is_common = ~_is_of_few(blocks, uncommon(traffic))
        common = _found(traffic, (previous >= 0) & is_common)[within]
        # Of each piece that is found, the time before the window at which it came last.
        found = (previous >= 0) & within[request]
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
            prompt_tokens=traffic.prompt_tokens[within],
            cached_tokens=cached,
            common_tokens=float(common.mean()),
            share=float(cached[-1].sum() / traffic.prompt_tokens[within].sum()),
            lead_s=lead_s,
            lead_share=lead_share,
        )

    def cached_within(self, kept_s: float) -> Int64s:
        """`cached_tokens` of the nearest time, [requests of the peak]."""
        powers = np.log2(np.clip(kept_s, KEPT_S[0], 2 * KEPT_S[-2]))
        found: Int64s = self.cached_tokens[round(float(powers))]
        return found

    def shape(self, shape: RequestShape, kept_s: float = float("inf")) -> RequestShape:
        """The mean request, with what a cache finds that keeps prefixes for so long."""
        cached = min(round(float(self.cached_within(kept_s).mean())), shape.prompt_tokens - 1)
        common = min(round(self.common_tokens), cached)
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
