"""A whole run as it is kept: what was asked, every result, and how it ended.

Reports are made from this and nothing else, during the run's own process or years later.
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
    """What arrivals were asked for, in words and, where they are numbers, in numbers.

    `rate_per_s` (in seconds of `time`, "emulated" or "wall"), `gap_cv` and `dispersion` are those
    of the whole schedule as it was drawn; None for a closed loop. `asked_rate_per_s` and
    `asked_gap_cv` are what it was drawn to have: the rate as typed, or the mean of one that changes
    over the schedule's length, and the variation of its gaps, None where the rate changes; both
    None for recorded times and for a closed loop. `concurrency` is None for an open one.
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
    """A traffic class: what was sent, in words and numbers. `slo` is as typed, or empty.

    `output_tokens` is what all its requests together ask for. `ends_s` is when its last session may
    begin, in seconds of its arrivals' time, None where its sessions are all that limits it; then
    again `sessions` and `requests` are None where that time is. Where both are given both limit.
    `input_tokens` is what all prompts that were planned come to, `reused_tokens` what of that
    stands at the beginning of an earlier prompt too, so that a prefix cache may have it; None if
    unknown.
    With `free_length` a reply may end before the length that is asked for.
    """

    name: str
    api: Api
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
    """What is known before the first request. `command` repeats the run.

    `skip_s` is the part at the start, in the run's time, that is sent and not measured.
    `started_at` is the wall time of the start, ISO 8601 in UTC; `label` a name that the user gave.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSummary:
    """How the sending of one class went.

    Requests that waited for `max_in_flight`; requests never sent; whether it was interrupted.
    `repeated` sessions were those of the workload once more, because a closed loop's time was not
    over when the workload was. `planned_histories` requests were to carry what the server had
    replied and carried what was planned instead, because a reply could not be had in their form.
    """

    held_back: int
    unsent: int
    interrupted: bool
    repeated: int = 0
    planned_histories: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLag:
    """How late a worker's event loop was, in wall ms, and how busy its process.

    Measured by a timer of its own while the worker dispatched; `cpu_share` is CPU seconds per wall
    second of the worker's process. `probes` is how often the timer rang, None in older files.
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

    `replies` were looked at: `by_ids` of them by the token ids that the server sent, which are
    exact, the others by tokenising their text again. `apart` differ from the usage, `apart_by_ids`
    of those that were counted by ids; `usage_tokens` and `counted_tokens` are sums over all that
    were looked at. Beside those are `without_usage` replies for which the server gave no count:
    they came in `without_usage_chunks`, each taken for a token, and have `without_usage_tokens`.
    `problem` says why replies were not counted that had no ids, or is empty.
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
    """What is known after the last reply. `wall_s` is the run's own length.

    `problem` is empty, or says what ended the sending before its time (a worker process that died).
    `epochs` are those of the server's clock in the run, where it tells them.
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
        """Whether any class was."""
        return any(summary.interrupted for summary in self.sending.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRecord:
    """One run, whose stamps are steady (see `records.steady_time`): a file's are the wall's.

    `end` is None when the file has none: the process was killed.

    `skipped` is the reading of the server's meters when the skipped part was over, if there is one.
    `cut` is True when the file's last line was cut off and left out: a result or a reading is lost.
    """

    header: RunHeader
    results: Sequence[Result] = field(repr=False)  # asyncio shows what its main task returned
    end: RunEnd | None
    skipped: ServerReading | None = None
    cut: bool = False

    @property
    def epochs(self) -> tuple[ClockEpoch, ...]:
        """Of the server's clock; empty where it tells none, or the run has no end."""
        return () if self.end is None else self.end.epochs

    def wall_ns(self, steady_ns: Int64s) -> Int64s:
        """Steady stamps as the wall's, both in ns since the run's start, [stamps]."""
        dilation = self.header.start.dilation
        if dilation is None or not changes(self.epochs, dilation):
            return steady_ns
        return SteadyTime(self.epochs, dilation).wall_ns(steady_ns)
