"""Counts of a run so far: its `ProgressObserver`, read by `loadgen.live.live_figures`.

All calls come from one event loop; none waits.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from loadgen.records.result import ABORTED, Result
from loadgen.records.run_record import ClassHeader, RunHeader

RECENT_REPLIES: Final = 1_000
"""The last replies of a class that make its recent percentiles."""


@dataclass(slots=True, kw_only=True)
class LiveClassCounts:
    """Counts of one class. Latencies are wall ns since a request was due.

    `ended_tokens` came in `ended_chunks`, in complete replies.
    """

    header: ClassHeader
    in_flight: int = 0
    ended: int = 0
    chunks: int = 0
    ended_chunks: int = 0
    ended_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    ttft_wall_ns: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_REPLIES))
    tpot_wall_ns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_REPLIES))

    @property
    def sent(self) -> int:
        """Requests sent."""
        return self.ended + self.in_flight

    @property
    def failed(self) -> int:
        """Failed requests, without those we aborted."""
        return sum(self.errors.values()) - self.errors[ABORTED]

    @property
    def completed(self) -> int:
        """Requests that ended well."""
        return self.ended - sum(self.errors.values())

    @property
    def tokens(self) -> float:
        """Output tokens so far: chunks times the tokens per chunk of complete replies.

        Busy servers put several tokens into a chunk; how many is known only at the end of a reply.
        """
        return self.chunks * (self.ended_tokens / self.ended_chunks if self.ended_chunks else 1.0)


class LiveCounts:
    """Counts of a run. Before `begin`, `origin_ns` is None.

    `dilation` is wall seconds per second of the run's time, `time` its name. `phase` is the
    activity outside the dispatch, in words, or empty.
    """

    def __init__(self) -> None:
        self.classes: dict[str, LiveClassCounts] = {}
        self.origin_ns: int | None = None
        self.time = "wall"
        self.dilation = 1.0
        self.lags_ms: dict[int, float] = {}
        self.phase = ""

    def say(self, phase: str) -> None:
        """Set the activity before or after the dispatch: `making prompts`, `counting tokens`."""
        self.phase = phase

    def begin(self, header: RunHeader, origin_ns: int) -> None:
        """Start the dispatch at `origin_ns` of the monotonic clock; forgets an earlier one."""
        self.classes = {each.name: LiveClassCounts(header=each) for each in header.classes}
        dilation = header.start.dilation
        self.time = "wall" if dilation is None else "emulated"
        self.dilation = 1.0 if dilation is None else dilation
        self.lags_ms = {}
        self.phase = ""
        self.origin_ns = origin_ns

    def add_chunks(self, traffic_class: str, count: int) -> None:
        """`count` more chunks have come."""
        self.classes[traffic_class].chunks += count

    def add_result(self, result: Result) -> None:
        """A request has ended."""
        counts = self.classes[result.traffic_class]
        counts.ended += 1
        counts.in_flight = max(0, counts.in_flight - 1)
        if result.error is not None:
            counts.errors[result.error] += 1
            return
        chunk_ns = result.chunk_ns
        if chunk_ns.size:
            first_ns, last_ns = int(chunk_ns[0]), int(chunk_ns[-1])
            tokens = result.counted_output_tokens
            counts.ended_chunks += chunk_ns.size
            counts.ended_tokens += tokens
            counts.ttft_wall_ns.append(first_ns - result.intended_ns)
            if chunk_ns.size > 1 and tokens > 1:
                counts.tpot_wall_ns.append((last_ns - first_ns) / (tokens - 1))

    def set_in_flight(self, traffic_class: str, count: int) -> None:
        """`count` requests of the class are under way."""
        self.classes[traffic_class].in_flight = count

    def set_lag(self, worker: int, lag_ms: float) -> None:
        """Set the recent lag of `worker`'s event loop, wall ms."""
        self.lags_ms[worker] = lag_ms
