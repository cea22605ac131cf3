"""Requests over time: arrivals, and tokens of prompt and reply.

Three arrays; operations return another object. Prompts have lengths and, from some traces, the
names of the blocks that they share.
Simulators take it; a load is sent from a `WorkloadPlan`. Must not know the server.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from loadgen.arrivals.arrival_spec import Gaps
from loadgen.arrivals.gaps import RenewalArrivals
from loadgen.errors import OptionError
from loadgen.records.arrays import Float64s, Int64s
from loadgen.workloads.length_pairs import LengthPairs, ObservedLengths
from loadgen.workloads.recording import NS_PER_S
from loadgen.workloads.trace_file import read_recording
from loadgen.workloads.trace_lines import TOKENS_MAX

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptBlocks:
    """Names of prompts' leading blocks of `tokens` tokens.

    A name stands for its block and all before it: prompts with an equal name begin with the same
    text, to the end of that block.

    Attributes:
        names: request by request, [blocks of all].
        begin: of each request's names, [requests + 1].
    """

    names: Int64s
    begin: Int64s
    tokens: int

    @classmethod
    def of(cls, blocks: Sequence[Sequence[int]], tokens: int) -> Self:
        """From each request's names."""
        counts = [len(each) for each in blocks]
        return cls(
            names=np.fromiter(chain.from_iterable(blocks), dtype=np.int64, count=sum(counts)),
            begin=np.cumsum([0, *counts], dtype=np.int64),
            tokens=tokens,
        )

    def chosen(self, which: Bools | Int64s) -> Self:
        """Those of the chosen requests: a mask [requests], or ascending numbers."""
        requests = np.flatnonzero(which) if which.dtype == np.bool_ else which
        counts = np.diff(self.begin)[requests]
        begin = np.concatenate([[0], counts.cumsum()])
        within = np.arange(begin[-1]) - np.repeat(begin[:-1], counts)
        names = self.names[np.repeat(self.begin[requests], counts) + within]
        return replace(self, names=names, begin=begin)


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

    def __post_init__(self) -> None:
        arrival_s = self.arrival_s
        for name, dtype in (
            ("arrival_s", np.float64),
            ("prompt_tokens", np.int64),
            ("output_tokens", np.int64),
        ):
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != 1 or array.shape != arrival_s.shape:
                expected = f"{np.dtype(dtype)}[requests], as many as there are arrivals"
                raise OptionError(name, f"{array.dtype}{array.shape}", expected=expected)
        bad = ~np.isfinite(arrival_s) | (arrival_s < 0) | (np.diff(arrival_s, prepend=0.0) < 0)
        self._refuse("arrival_s", bad, "a finite time from 0 on, not before the request before")
        for name in ("prompt_tokens", "output_tokens"):
            tokens = getattr(self, name)
            self._refuse(name, (tokens < 1) | (tokens > TOKENS_MAX), f"1 to {TOKENS_MAX:,} tokens")

    def _refuse(self, name: str, bad: Bools, expected: str) -> None:
        """Name the first `bad` request, [requests]."""
        if bad.any():
            request = int(bad.argmax())
            raise OptionError(f"{name}[{request}]", getattr(self, name)[request], expected=expected)

    @classmethod
    def recorded(cls, path: Path) -> Self:
        """Read a trace with arrival times, in any format; the first request arrives at 0.

        Raises FileError for an unusable file.
        """
        recording = read_recording(path)
        return cls(
            arrival_s=recording.arrivals_ns / NS_PER_S,
            prompt_tokens=recording.input_tokens,
            output_tokens=recording.output_tokens,
            blocks=None
            if recording.blocks is None
            else PromptBlocks.of(recording.blocks, tokens=recording.block_tokens),
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
            raise OptionError("requests", requests, expected="requests or duration_s, one of them")
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
        """The chosen requests at their times: a mask [requests], or ascending numbers."""
        return type(self)(
            arrival_s=self.arrival_s[which],
            prompt_tokens=self.prompt_tokens[which],
            output_tokens=self.output_tokens[which],
            blocks=self.blocks and self.blocks.chosen(which),
        )

    def first(self, requests: int) -> Self:
        """The first so many requests."""
        return self.chosen(np.arange(min(requests, len(self))))

    def window(self, begin_s: float, end_s: float) -> Self:
        """Requests arriving from `begin_s` to before `end_s`, with `begin_s` as time 0."""
        if not 0.0 <= begin_s < end_s:
            raise OptionError("window", f"{begin_s} to {end_s} s", expected="0 <= begin < end")
        kept = self.chosen((self.arrival_s >= begin_s) & (self.arrival_s < end_s))
        return replace(kept, arrival_s=kept.arrival_s - begin_s)

    def sped_up(self, factor: float) -> Self:
        """A copy with all times divided by `factor`."""
        _check_positive("factor", factor)
        return replace(self, arrival_s=self.arrival_s / factor)

    def within_context(self, context_tokens: int) -> Self:
        """Drop requests whose prompt and reply together exceed the context."""
        return self.chosen(self.prompt_tokens + self.output_tokens <= context_tokens)

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
        raise OptionError(field, value, expected="a finite number above 0")
