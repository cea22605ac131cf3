"""Requests over time: arrivals, and tokens of prompt and reply.

Arrays; operations return another object. Prompts have lengths and, where it is known, names of the
pieces that they share; requests may wait for the end of others.
Simulators take it; a load is sent from a `WorkloadPlan`. Must not know the server.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from loadgen.arrivals.arrival_spec import Gaps
from loadgen.arrivals.closed_loop import ClosedLoop
from loadgen.arrivals.gaps import RenewalArrivals
from loadgen.arrivals.piecewise_linear import PiecewiseLinear
from loadgen.errors import OptionError
from loadgen.records.arrays import Float64s, Int64s
from loadgen.workloads.length_pairs import LengthPairs, ObservedLengths
from loadgen.workloads.recording import NS_PER_S
from loadgen.workloads.trace_file import read_recording
from loadgen.workloads.trace_lines import TOKENS_MAX

Bools = NDArray[np.bool_]

_LEFT_OUT: Final = -2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptBlocks:
    """Names of the leading blocks of requests' tokens, prompt and then reply.

    A name stands for its block and all before it: requests with an equal name begin with the same
    text, to the end of the shorter of the two blocks.

    Attributes:
        names: request by request, [blocks of all].
        end_tokens: a request's tokens up to the end of a block, [blocks of all].
        begin: of each request's names, [requests + 1].
    """

    names: Int64s
    end_tokens: Int64s
    begin: Int64s

    @classmethod
    def of(cls, blocks: Sequence[Sequence[int]], *, tokens: int, prompt_tokens: Int64s) -> Self:
        """From the names of each prompt's blocks of `tokens` tokens; the last may be shorter.

        Names of what is behind a prompt's end are left out.
        """
        named = np.array([len(each) for each in blocks], dtype=np.int64)
        counts = np.minimum(named, -(-prompt_tokens // tokens))
        begin = np.append(0, counts.cumsum())
        number = np.arange(begin[-1]) - np.repeat(begin[:-1], counts)
        names = chain.from_iterable(
            each[:count] for each, count in zip(blocks, counts.tolist(), strict=True)
        )
        return cls(
            names=np.fromiter(names, dtype=np.int64, count=int(begin[-1])),
            end_tokens=np.minimum((number + 1) * tokens, np.repeat(prompt_tokens, counts)),
            begin=begin,
        )

    def chosen(self, requests: Int64s) -> Self:
        """Those of the requests with these numbers, in their order."""
        counts = np.diff(self.begin)[requests]
        begin = np.append(0, counts.cumsum())
        within = np.arange(begin[-1]) - np.repeat(begin[:-1], counts)
        which = np.repeat(self.begin[requests], counts) + within
        return type(self)(names=self.names[which], end_tokens=self.end_tokens[which], begin=begin)

    def shared(self) -> Self | None:
        """Without the names that only one request has; None if there are no others."""
        _, number, count = np.unique(self.names, return_inverse=True, return_counts=True)
        kept = count[number] > 1  # what is shared begins what is not
        if not kept.any():
            return None
        begin = np.append(0, kept.cumsum())[self.begin]
        return type(self)(names=self.names[kept], end_tokens=self.end_tokens[kept], begin=begin)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sessions:
    """Requests that arrive a while after the end of others, as turns of a conversation do.

    Attributes:
        after: number of a request of its session that it waits for, [requests]; -1 for the first.
        think_s: from the last token of all those to this one's arrival, [requests]; 0 for a first.
        also: the number of a request, and of another one that it waits for, [more, 2]; None where
            each waits for one, as in conversations.

    Raises OptionError for one that is not before it, and for arrays that do not match.
    """

    after: Int64s
    think_s: Float64s
    also: Int64s | None = None

    def __post_init__(self) -> None:
        if self.after.shape != self.think_s.shape:
            raise OptionError("think_s", self.think_s.shape, "one of each request")
        waiting, before = self.waits
        bad = before >= waiting
        if bad.any():
            request, other = int(waiting[bad][0]), int(before[bad][0])
            raise OptionError(f"after[{request}]", other, "a request before it")

    @property
    def waits(self) -> tuple[Int64s, Int64s]:
        """Requests that wait, and each one's other, for every pair."""
        later = np.flatnonzero(self.after >= 0)
        if self.also is None:
            return later, self.after[later]
        pairs = np.concatenate([np.stack([later, self.after[later]], axis=1), self.also])
        return pairs[:, 0], pairs[:, 1]

    def chosen(self, requests: Int64s) -> Self:
        """Those with these ascending numbers, numbered anew.

        Raises OptionError for a request without the one that it waits for.
        """
        anew = np.full(len(self.after) + 1, _LEFT_OUT)
        anew[requests] = np.arange(len(requests))
        anew[-1] = -1  # of no request, which `after` numbers so
        waiting, before = self.waits
        lost = (anew[waiting] >= 0) & (anew[before] == _LEFT_OUT)
        if lost.any():
            request, other = int(waiting[lost][0]), int(before[lost][0])
            raise OptionError("chosen", request, f"request {other} beside it, which it waits for")
        also = self.also
        if also is not None:
            also = anew[also[anew[also[:, 0]] >= 0]]
        return type(self)(
            after=anew[self.after[requests]], think_s=self.think_s[requests], also=also
        )

    def with_later(self, those: Bools) -> Bools:
        """`those` requests and all that wait for one of them, in turn, [requests]."""
        waiting, before = self.waits
        while True:
            more = those.copy()
            more[waiting[those[before]]] = True
            if (more == those).all():
                return more
            those = more

    @property
    def heads(self) -> Int64s:
        """The first request of each one's session, [requests]."""
        heads = np.where(self.after < 0, np.arange(len(self.after)), self.after)
        while True:
            before = heads[heads]
            if (before == heads).all():
                return heads
            heads = before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClosedLoops:
    """Sessions that begin when others end.

    Attributes:
        of: the loop of each request, [requests]; -1 for those with arrivals of their own.
        pacers: of the loops. A loop's time begins at its first session's `arrival_s`; where it ends
            one, sessions that have not begun are not sent.

    Raises OptionError for a loop without a pacer.
    """

    of: Int64s
    pacers: tuple[ClosedLoop, ...]

    def __post_init__(self) -> None:
        if self.of.max(initial=-1) >= len(self.pacers):
            raise OptionError("of", int(self.of.max()), "the number of a pacer, or -1")

    @classmethod
    def one(cls, requests: int, *, concurrency: int) -> Self:
        """All `requests` in one loop, in which so many sessions are open at a time."""
        if concurrency < 1:
            raise OptionError("concurrency", concurrency, "at least 1")
        level = PiecewiseLinear(times_s=(0.0,), rates_per_s=(float(concurrency),))
        return cls(of=np.zeros(requests, dtype=np.int64), pacers=(ClosedLoop(concurrency=level),))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Requests in order of arrival, from time 0; possibly none.

    Raises OptionError for arrays of another shape or dtype, arrivals that are not finite, negative
    or out of order, and token counts outside 1 to `TOKENS_MAX`.
    """

    arrival_s: Float64s  # [requests]
    prompt_tokens: Int64s  # [requests]
    output_tokens: Int64s  # [requests]
    blocks: PromptBlocks | None = None
    """None where it is not known what prompts share: then no two do."""
    sessions: Sessions | None = None
    """None where all arrivals are known. A request that waits for another has its session's."""
    loops: ClosedLoops | None = None
    """None without closed loops."""
    priority: Int64s | None = None
    """Of each request, the lowest the most urgent, [requests]; None where all are equal. Schedulers
    that go by arrival do not look at it."""

    def __post_init__(self) -> None:
        arrival_s = self.arrival_s
        for name, dtype in (
            ("arrival_s", np.float64),
            ("prompt_tokens", np.int64),
            ("output_tokens", np.int64),
            ("priority", np.int64),
        ):
            array = getattr(self, name)
            if array is None:
                continue
            if array.dtype != dtype or array.ndim != 1 or array.shape != arrival_s.shape:
                expected = f"{np.dtype(dtype)}[requests], as many as there are arrivals"
                raise OptionError(name, f"{array.dtype}{array.shape}", expected)
        bad = ~np.isfinite(arrival_s) | (arrival_s < 0) | (np.diff(arrival_s, prepend=0.0) < 0)
        self._refuse("arrival_s", bad, "a finite time from 0 on, not before the request before")
        for name in ("prompt_tokens", "output_tokens"):
            tokens = getattr(self, name)
            self._refuse(name, (tokens < 1) | (tokens > TOKENS_MAX), f"1 to {TOKENS_MAX:,} tokens")
        each = "those of each request"
        if self.blocks is not None and len(self.blocks.begin) != len(self) + 1:
            raise OptionError("blocks", len(self.blocks.begin) - 1, each)
        if self.loops is not None and len(self.loops.of) != len(self):
            raise OptionError("loops", len(self.loops.of), each)
        if self.sessions is not None and len(self.sessions.after) != len(self):
            raise OptionError("sessions", len(self.sessions.after), each)

    def _refuse(self, name: str, bad: Bools, expected: str) -> None:
        """Name the first `bad` request, [requests]."""
        if bad.any():
            request = int(bad.argmax())
            raise OptionError(f"{name}[{request}]", getattr(self, name)[request], expected)

    @classmethod
    def recorded(cls, path: Path, *, seed: int = 0) -> Self:
        """Read a trace with arrival times, in any format; the first request arrives at 0.

        A folder of clients is drawn by `seed`. Raises FileError for an unusable file.
        """
        recording = read_recording(path, seed=seed)
        return cls(
            arrival_s=recording.arrivals_ns / NS_PER_S,
            prompt_tokens=recording.input_tokens,
            output_tokens=recording.output_tokens,
            blocks=None
            if recording.blocks is None
            else PromptBlocks.of(
                recording.blocks,
                tokens=recording.block_tokens,
                prompt_tokens=recording.input_tokens,
            ),
        )

    @classmethod
    def drawn(
        cls,
        *,
        rate_per_s: float,
        lengths: LengthPairs,
        seed: int,
        requests: int | None = None,
        duration_s: float | None = None,
        gaps: Gaps = "poisson",
        burstiness: float = 1.0,
    ) -> Self:
        """Draw arrivals, `rate_per_s` on average; `gaps` and `burstiness` as of `RenewalArrivals`.

        As many as `requests`, or as arrive in `duration_s`. Gaps and lengths come from separate
        streams of the seed: more requests or another rate leave the lengths unchanged. Raises
        OptionError for a rate, burstiness or extent not above 0, and for both extents or none.
        """
        _check_positive("rate_per_s", rate_per_s)
        _check_positive("burstiness", burstiness)
        if (requests is None) == (duration_s is None):
            raise OptionError("requests", requests, "requests or duration_s, one of them")
        arrivals = RenewalArrivals(gaps, burstiness=burstiness, seed=seed)
        if requests is not None:
            _check_positive("requests", requests)
            arrival_s = arrivals.next(requests) / rate_per_s
        else:
            assert duration_s is not None
            _check_positive("duration_s", duration_s)
            arrival_s = arrivals.until(rate_per_s * duration_s) / rate_per_s
        chance = np.random.default_rng([seed, 2])
        prompt_tokens, output_tokens = lengths.draw_pairs(chance, len(arrival_s))
        return cls(arrival_s=arrival_s, prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def chosen(self, which: Bools | Int64s) -> Self:
        """The chosen requests at their times: a mask [requests], or ascending numbers.

        Raises OptionError for a request without the one that it waits for.
        """
        requests = np.arange(len(self))[which]
        return replace(
            self,
            arrival_s=self.arrival_s[requests],
            prompt_tokens=self.prompt_tokens[requests],
            output_tokens=self.output_tokens[requests],
            blocks=self.blocks and self.blocks.chosen(requests),
            sessions=self.sessions and self.sessions.chosen(requests),
            loops=self.loops and replace(self.loops, of=self.loops.of[requests]),
            priority=None if self.priority is None else self.priority[requests],
        )

    def first(self, requests: int) -> Self:
        """The first so many requests; of a session that they divide, its first turns."""
        return self.chosen(np.arange(min(requests, len(self))))

    def window(self, begin_s: float, end_s: float) -> Self:
        """Sessions arriving from `begin_s` to before `end_s`, with `begin_s` as time 0.

        Raises OptionError for a closed loop, whose arrivals are not known.
        """
        if not 0.0 <= begin_s < end_s:
            raise OptionError("window", f"{begin_s} to {end_s} s", "0 <= begin < end")
        self._refuse_closed("window", f"{begin_s} to {end_s} s")
        begun_s = self.arrival_s
        if self.sessions is not None:
            begun_s = begun_s[self.sessions.heads]
        kept = self.chosen((begun_s >= begin_s) & (begun_s < end_s))
        return replace(kept, arrival_s=kept.arrival_s - begin_s)

    def sped_up(self, factor: float) -> Self:
        """A copy with all arrivals' times divided by `factor`; users think as long as before.

        Raises OptionError for a closed loop, whose sessions begin when others end.
        """
        _check_positive("factor", factor)
        self._refuse_closed("factor", factor)
        return replace(self, arrival_s=self.arrival_s / factor)

    def _refuse_closed(self, name: str, value: object) -> None:
        if self.loops is not None:
            raise OptionError(name, value, "traffic with arrivals, not a closed loop")

    def within_context(self, context_tokens: int) -> Self:
        """Drop requests whose prompt and reply together exceed the context, and later turns."""
        long = self.prompt_tokens + self.output_tokens > context_tokens
        return self.chosen(~(long if self.sessions is None else self.sessions.with_later(long)))

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> tuple[Self, Int64s]:
        """All requests of `parts`, and the part of each, [requests].

        At one time those of an earlier part come first. Requests of different parts share nothing.
        """
        if len(parts) == 1:
            return parts[0], np.zeros(len(parts[0]), dtype=np.int64)
        arrival_s = np.concatenate([each.arrival_s for each in parts])
        order = arrival_s.argsort(kind="stable")
        of_part = np.repeat(np.arange(len(parts)), [len(each) for each in parts])
        merged = cls(
            arrival_s=arrival_s[order],
            prompt_tokens=np.concatenate([each.prompt_tokens for each in parts])[order],
            output_tokens=np.concatenate([each.output_tokens for each in parts])[order],
            blocks=_merged_blocks(parts, order),
            sessions=_merged_sessions(parts, order),
            loops=_merged_loops(parts, order),
            priority=_merged_priority(parts, order),
        )
        return merged, of_part[order]

    @property
    def lengths(self) -> ObservedLengths:
        """The observed pairs of lengths, to draw more requests like these."""
        return ObservedLengths(prompt_tokens=self.prompt_tokens, output_tokens=self.output_tokens)

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last arrival; 0 for fewer than two requests."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0


def _check_positive(field: str, value: float) -> None:
    if not 0 < value < np.inf:
        raise OptionError(field, value, "a finite number above 0")


def _merged_blocks(parts: Sequence[Traffic], order: Int64s) -> PromptBlocks | None:
    """Of all parts' requests, in `order` of their numbers one part after another."""
    if all(each.blocks is None for each in parts):
        return None
    names, end_tokens, counts = [], [], []
    named = 0
    for each in parts:
        if each.blocks is None:
            counts.append(np.zeros(len(each), dtype=np.int64))
            continue
        known, number = np.unique(each.blocks.names, return_inverse=True)
        names.append(named + number)
        end_tokens.append(each.blocks.end_tokens)
        counts.append(np.diff(each.blocks.begin))
        named += len(known)
    together = PromptBlocks(
        names=np.concatenate(names),
        end_tokens=np.concatenate(end_tokens),
        begin=np.append(0, np.concatenate(counts).cumsum()),
    )
    return together.chosen(order)


def _merged_sessions(parts: Sequence[Traffic], order: Int64s) -> Sessions | None:
    """As `_merged_blocks`."""
    if all(each.sessions is None for each in parts):
        return None
    after, think_s, also = [], [], []
    first = 0
    for each in parts:
        sessions = each.sessions or Sessions(
            after=np.full(len(each), -1), think_s=np.zeros(len(each))
        )
        after.append(np.where(sessions.after >= 0, sessions.after + first, -1))
        think_s.append(sessions.think_s)
        if sessions.also is not None:
            also.append(sessions.also + first)
        first += len(each)
    anew = np.append(order.argsort(), -1)  # the last is of no request
    return Sessions(
        after=anew[np.concatenate(after)[order]],
        think_s=np.concatenate(think_s)[order],
        also=anew[np.concatenate(also)] if also else None,
    )


def _merged_loops(parts: Sequence[Traffic], order: Int64s) -> ClosedLoops | None:
    """As `_merged_blocks`."""
    if all(each.loops is None for each in parts):
        return None
    of: list[Int64s] = []
    pacers: list[ClosedLoop] = []
    for each in parts:
        if each.loops is None:
            of.append(np.full(len(each), -1))
        else:
            of.append(np.where(each.loops.of >= 0, each.loops.of + len(pacers), -1))
            pacers += each.loops.pacers
    return ClosedLoops(of=np.concatenate(of)[order], pacers=tuple(pacers))


def _merged_priority(parts: Sequence[Traffic], order: Int64s) -> Int64s | None:
    """As `_merged_blocks`; those of a part without any are 0."""
    if all(each.priority is None for each in parts):
        return None
    known = [
        np.zeros(len(each), dtype=np.int64) if each.priority is None else each.priority
        for each in parts
    ]
    priority: Int64s = np.concatenate(known)[order]
    return priority
