"""Results as numpy columns, ordered by due time: a million requests in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Self

import numpy as np
from numpy.typing import NDArray

from loadgen.records.arrays import Int64s
from loadgen.records.result import ABORTED, Result

Bools = NDArray[np.bool_]
UNKNOWN = -1  # a count that the server did not give


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """One row per request, sorted by due time; times in wall ns since the run's start.

    All are [requests] but `chunk_ns`, [chunks of all requests, one request after another]. `done`:
    complete without an error; `aborted`: cancelled by us; neither: failed. `first_ns` and `last_ns`
    are the chunks', or `ended_ns` without any. `output_tokens` is the server's count, else the
    chunks (`counted` is then False); `input_tokens` the server's, else the asked ones;
    `cached_tokens` UNKNOWN where not reported.
    """

    intended_ns: Int64s
    sent_ns: Int64s
    ended_ns: Int64s
    first_ns: Int64s
    last_ns: Int64s
    chunks: Int64s
    input_tokens: Int64s
    asked_input_tokens: Int64s
    output_tokens: Int64s
    asked_output_tokens: Int64s
    cached_tokens: Int64s
    turn: Int64s
    counted: Bools
    done: Bools
    aborted: Bools
    chunk_ns: Int64s

    @classmethod
    def of(cls, results: Sequence[Result]) -> Self:
        """Columns of results in any order."""
        due = _ints(results, "intended_ns")
        ordered = [results[index] for index in np.argsort(due, kind="stable").tolist()]
        chunks = _ints(ordered, "chunk_ns.size")
        ended_ns = _ints(ordered, "ended_ns")
        asked_input = _ints(ordered, "asked_input_tokens")
        given_input = _counts(ordered, "input_tokens")
        given_output = _counts(ordered, "output_tokens")
        errors = [result.error for result in ordered]
        chunk_ns = np.concatenate(
            [np.empty(0, dtype=np.int64), *(result.chunk_ns for result in ordered)]
        )
        ends = np.cumsum(chunks)
        some = chunks > 0
        first_ns, last_ns = ended_ns.copy(), ended_ns.copy()
        first_ns[some] = chunk_ns[(ends - chunks)[some]]
        last_ns[some] = chunk_ns[ends[some] - 1]
        return cls(
            intended_ns=np.sort(due, kind="stable"),
            sent_ns=_ints(ordered, "sent_ns"),
            ended_ns=ended_ns,
            first_ns=first_ns,
            last_ns=last_ns,
            chunks=chunks,
            input_tokens=np.where(given_input == UNKNOWN, asked_input, given_input),
            asked_input_tokens=asked_input,
            output_tokens=np.where(given_output == UNKNOWN, chunks, given_output),
            asked_output_tokens=_ints(ordered, "asked_output_tokens"),
            cached_tokens=_counts(ordered, "cached_tokens"),
            turn=_ints(ordered, "turn"),
            counted=given_output != UNKNOWN,
            done=np.array([error is None for error in errors], dtype=np.bool_),
            aborted=np.array([error == ABORTED for error in errors], dtype=np.bool_),
            chunk_ns=chunk_ns,
        )

    def __len__(self) -> int:
        return self.intended_ns.size

    @property
    def failed(self) -> Bools:
        """Ended with an error other than our abort, [requests]."""
        return ~self.done & ~self.aborted

    @property
    def streamed(self) -> Bools:
        """Done with at least one chunk, so with latencies, [requests]."""
        return self.done & (self.chunks > 0)

    @property
    def spread(self) -> Bools:
        """Done with a time between tokens, which a single chunk does not have, [requests]."""
        return self.done & (self.chunks > 1) & (self.output_tokens > 1)

    def where(self, kept: Bools) -> Self:
        """The rows of `kept`, [requests], with their chunks."""
        if kept.all():
            return self
        of_chunks = np.repeat(kept, self.chunks)  # [chunks]
        chosen = {
            field.name: getattr(self, field.name)[of_chunks if field.name == "chunk_ns" else kept]
            for field in fields(self)
        }
        return type(self)(**chosen)


def _ints(results: Sequence[Result], name: str) -> Int64s:
    """Attribute `name` of each, [results]."""
    return np.fromiter(map(attrgetter(name), results), dtype=np.int64, count=len(results))


def _counts(results: Sequence[Result], name: str) -> Int64s:
    """Attribute `name` of each, UNKNOWN for None, [results]."""
    counts = (UNKNOWN if count is None else count for count in map(attrgetter(name), results))
    return np.fromiter(counts, dtype=np.int64, count=len(results))
