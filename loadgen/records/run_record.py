"""The record of a run: options, results, and end.

Reports are made from this alone, at once or years later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadgen.records.arrays import Int64s
from loadgen.records.result import Result
from loadgen.records.server_reading import ServerReading
from loadgen.records.steady_time import ClockEpoch, SteadyTime, changes

Api = Literal["completions", "chat", "grpc"]
PromptKind = Literal["token-ids", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedArrivals:
    """The asked arrivals, in words and, where possible, numbers.

    `rate_per_s` (in seconds of `time`, "emulated" or "wall"), `gap_cv` and `dispersion` describe
    the whole drawn schedule; None for a closed loop. `asked_rate_per_s` (the mean of a changing
    rate over the schedule) and `asked_gap_cv` (None for a changing rate) are the targets it was
    drawn for; None for recorded times and a closed loop. `concurrency` is None for an open loop.
    """

    words: str
    time: str
    rate_per_s: float | None = None
    gap_cv: float | None = None
    dispersion: float | None = None
    concurrency: int | None = None
    asked_rate_per_s: float | None = None
    asked_gap_cv: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassHeader:
    """A traffic class in words and numbers. `slo` is as typed, or empty.

    `output_tokens` is the sum asked. `ends_s` is when the last session may begin, in seconds of its
    arrivals' time, None without such a limit; `sessions` and `requests` are None where that time is
    the only one. `input_tokens` is the sum of planned prompts, `reused_tokens` the part that also
    begins an earlier prompt, so that a prefix cache may have it; None if unknown. With
    `free_length` a reply may end before the asked length. A simulated run sends nothing: `api` is
    None, and `prompts` empty.
    """

    name: str
    api: Api | None
    workload: str
    prompts: str
    arrivals: AskedArrivals
    sessions: int | None
    requests: int | None
    slo: str = ""
    notes: tuple[str, ...] = ()
    output_tokens: int | None = None
    ends_s: float | None = None
    input_tokens: int | None = None
    reused_tokens: int | None = None
    free_length: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """Facts known before the first request. `command` repeats the run.

    `skip_s` is the part at the start, in the run's time, that is sent and not measured.
    `started_at` is wall time, ISO 8601 in UTC; `label` the user's name for the run.

    `simulated`: the times are a simulator's, in emulated time of dilation 1. There is no load
    generator and no server: `url` is empty, `workers` 0, and every request is sent when it is due.
    """

    command: str
    url: str
    model: str
    seed: int
    workers: int
    started_at: str
    classes: tuple[ClassHeader, ...]
    start: ServerReading
    skip_s: float = 0.0
    label: str = ""
    notes: tuple[str, ...] = ()
    simulated: bool = False

    @property
    def dilation(self) -> float:
        """Wall seconds per second of the run's time: 1 for a server without its own clock."""
        return self.start.dilation or 1.0

    @property
    def skip_ns(self) -> int:
        """The skipped part in steady ns (see `records.steady_time`)."""
        return int(self.skip_s * self.dilation * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSummary:
    """Summary of sending one class.

    `held_back` requests waited for `max_in_flight`. `repeated` sessions of the workload were sent
    again, because a closed loop's time outlasted it. `planned_histories` requests carried planned
    replies because the server's could not be had in their form.
    """

    held_back: int
    unsent: int
    interrupted: bool
    repeated: int = 0
    planned_histories: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLag:
    """Lag of a worker's event loop, in wall ms, and its CPU use, while it dispatched.

    `cpu_share` is CPU seconds per wall second of its process. `probes` is how often the timer
    fired, None in older files.
    """

    worker: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    cpu_share: float
    probes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recount:
    """Replies whose tokens were counted again, beside the server's usage.

    Of `replies`, `by_ids` were counted exactly, by the token ids sent, the others by tokenising
    their text. `apart` differ from the usage, `apart_by_ids` of those counted by ids;
    `usage_tokens` and `counted_tokens` are sums. Beside those are `without_usage` replies without a
    server count, in `without_usage_chunks`, each taken for a token, with `without_usage_tokens`.
    `problem` says why replies without ids were not counted, or is empty.
    """

    replies: int = 0
    apart: int = 0
    usage_tokens: int = 0
    counted_tokens: int = 0
    by_ids: int = 0
    apart_by_ids: int = 0
    without_usage: int = 0
    without_usage_chunks: int = 0
    without_usage_tokens: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Facts known after the last reply.

    `problem` is empty, or says what ended the sending early (a worker process that died). `epochs`
    are those of the server's clock in the run, if known.
    """

    end: ServerReading
    wall_s: float
    sending: Mapping[str, SendSummary]
    lags: tuple[LoopLag, ...] = ()
    recount: Recount = field(default_factory=Recount)
    problem: str = ""
    epochs: tuple[ClockEpoch, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Whether any class was interrupted."""
        return any(summary.interrupted for summary in self.sending.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRecord:
    """One run, with steady stamps (see `records.steady_time`); a file's are the wall's.

    `end` is None if the process was killed. `skipped` is the reading of the server's meters at the
    end of the skipped part, if any. `cut`: the file's last line was cut off and left out.
    """

    header: RunHeader
    results: Sequence[Result] = field(repr=False)  # asyncio shows what its main task returned
    end: RunEnd | None
    skipped: ServerReading | None = None
    cut: bool = False

    @property
    def epochs(self) -> tuple[ClockEpoch, ...]:
        """Epochs of the server's clock; empty if unknown, or the run has no end."""
        return () if self.end is None else self.end.epochs

    def wall_ns(self, steady_ns: Int64s) -> Int64s:
        """Wall ns of steady stamps, both since the run's start, [stamps]."""
        dilation = self.header.start.dilation
        if dilation is None or not changes(self.epochs, dilation):
            return steady_ns
        return SteadyTime(self.epochs, dilation).wall_ns(steady_ns)
