"""Traffic of planned sessions: what a server would be sent, without words.

Two prompts of a plan share the pieces with which both begin (`PromptSegment.key`), and a later turn
begins with the prompts of the turns before it. Their replies stand there too: as they were said, or
as they were planned, which no server has computed before.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from loadgen.arrivals.closed_loop import ClosedLoop
from loadgen.arrivals.make_pacer import asked
from loadgen.arrivals.pacer import Pacer
from loadgen.arrivals.schedule import ArrivalSchedule
from loadgen.records.arrays import Float64s, Int64s
from loadgen.records.run_record import AskedArrivals
from loadgen.workloads.class_draft import ClassDraft, unpaced_words
from loadgen.workloads.recording import NS_PER_S
from loadgen.workloads.session_plan import CallPlan, PromptSegment, SingleRequests, WorkloadPlan
from loadgen.workloads.traffic import ClosedLoops, PromptBlocks, Sessions, Traffic

PlannedSessions = Sequence[tuple[CallPlan, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassTraffic:
    """Traffic of one class; `workload` and `arrivals` describe it, `notes` what was left out."""

    traffic: Traffic
    workload: str
    arrivals: AskedArrivals
    notes: tuple[str, ...]


def class_traffic(draft: ClassDraft) -> ClassTraffic:
    """Plan a class whose recorded texts, if any, were counted.

    Raises LoadError, also as `planned_traffic`.
    """
    start_s = draft.arrivals.start_s
    columns = draft.planned_as_columns()
    if columns is not None:
        singles, pacer = columns
        plan: SingleRequests | WorkloadPlan = singles
        planned = len(singles.input_tokens)
        traffic = single_traffic(singles, pacer, start_s=start_s)
    else:
        whole, pacer = draft.planned()
        plan = whole
        planned = len(whole.sessions)
        served = draft.workload.history == "served"
        traffic = planned_traffic(whole, pacer, start_s=start_s, served_history=served)
    if draft.workload.priority:
        priority = np.full(len(traffic), draft.workload.priority)
        traffic = replace(traffic, priority=priority)
    return ClassTraffic(
        traffic=traffic,
        workload=plan.words,
        arrivals=asked(draft.arrivals, pacer, time="emulated"),
        notes=(*plan.notes, *plan.cuts.words, *unpaced_words(draft.arrivals, pacer, planned)),
    )


def single_traffic(plan: SingleRequests, pacer: Pacer, *, start_s: float = 0.0) -> Traffic:
    """As `planned_traffic`, of sessions of one request."""
    begin_s = _paced(len(plan.input_tokens), pacer)
    paced = slice(len(begin_s))
    blocks = None
    if plan.blocks is not None:
        blocks = PromptBlocks.of(
            plan.blocks[paced], tokens=plan.block_tokens, prompt_tokens=plan.input_tokens[paced]
        )
    return Traffic(
        arrival_s=begin_s + start_s,
        prompt_tokens=plan.input_tokens[paced],
        output_tokens=plan.output_tokens[paced],
        blocks=blocks,
        loops=_loops(len(begin_s), pacer),
    )


def planned_traffic(
    plan: WorkloadPlan, pacer: Pacer, *, start_s: float = 0.0, served_history: bool = False
) -> Traffic:
    """Requests of the sessions that have a time, session by session.

    `start_s` is when the pacer begins. With `served_history` later prompts carry the replies that
    the server gave.
    """
    begin_s = _paced(len(plan.sessions), pacer)
    sessions = plan.sessions[: len(begin_s)]
    calls = list(chain.from_iterable(sessions))
    counts = np.fromiter(map(len, sessions), dtype=np.int64, count=len(sessions))
    return Traffic(
        arrival_s=np.repeat(begin_s + start_s, counts),
        prompt_tokens=_whole(call.input_tokens for call in calls),
        output_tokens=_whole(call.output_tokens for call in calls),
        blocks=_blocks(sessions, served_history=served_history),
        sessions=None if len(calls) == len(sessions) else _sessions(sessions, counts),
        loops=_loops(len(calls), pacer),
    )


def _whole(numbers: Iterable[int]) -> Int64s:
    return np.fromiter(numbers, dtype=np.int64)


def _paced(sessions: int, pacer: Pacer) -> Float64s:
    """When those of the first `sessions` begin that have a time; 0 in a closed loop."""
    if isinstance(pacer, ClosedLoop):
        return np.zeros(sessions)
    assert isinstance(pacer, ArrivalSchedule)
    return pacer.due_ns[:sessions] / NS_PER_S


def _loops(requests: int, pacer: Pacer) -> ClosedLoops | None:
    if not isinstance(pacer, ClosedLoop):
        return None
    return ClosedLoops(of=np.zeros(requests, dtype=np.int64), pacers=(pacer,))


def _sessions(sessions: PlannedSessions, counts: Int64s) -> Sessions:
    after: list[int] = []
    also: list[tuple[int, int]] = []
    think_ns: list[int] = []
    for first, calls in zip((counts.cumsum() - counts).tolist(), sessions, strict=True):
        for call in calls:
            also += ((len(after), first + other) for other in call.after[1:])
            after.append(first + call.after[0] if call.after else -1)
            think_ns.append(call.think_ns)
    return Sessions(
        after=np.array(after, dtype=np.int64),
        think_s=np.array(think_ns) / NS_PER_S,
        also=np.array(also, dtype=np.int64) if also else None,
    )


def _blocks(sessions: PlannedSessions, *, served_history: bool) -> PromptBlocks | None:
    """Names of the pieces that more than one request begins with."""
    beginnings = Counter(call.segments[0].key for calls in sessions for call in calls)
    text = _PieceNames()
    for calls in sessions:
        replies = _replies(calls) if served_history else {}
        for position, call in enumerate(calls):
            # Most workloads share little: what begins as nothing else does needs no name.
            shares = beginnings[call.segments[0].key] > 1
            reply = replies.get(position)
            text.add((*call.segments, *([reply] if reply else [])) if shares else ())
    return text.blocks().shared()


def _replies(calls: tuple[CallPlan, ...]) -> dict[int, PromptSegment]:
    """The replies that later prompts of a session carry, by the position of their calls."""
    return {
        segment.reply_of: segment
        for call in calls
        for segment in call.segments
        if segment.reply_of is not None
    }


class _PieceNames:
    """Numbers pieces of text by what they are and all that is before them."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], int] = {}  # (node, key), a node is a row of pieces
        self._nodes: dict[tuple[int, int], int] = {}  # (name, tokens): the node behind it
        self._named: list[int] = []
        self._ends: list[int] = []
        self._begin: list[int] = [0]

    def add(self, segments: Sequence[PromptSegment]) -> None:
        """Name the pieces with which the next request begins."""
        node = end = 0
        for each in segments:
            # Of pieces with one key the shorter is the beginning of the longer.
            name = self._names.setdefault((node, each.key), len(self._names))
            node = self._nodes.setdefault((name, each.tokens), len(self._nodes) + 1)
            end += each.tokens
            self._named.append(name)
            self._ends.append(end)
        self._begin.append(len(self._named))

    def blocks(self) -> PromptBlocks:
        """The names of all requests so far."""
        return PromptBlocks(
            names=np.array(self._named, dtype=np.int64),
            end_tokens=np.array(self._ends, dtype=np.int64),
            begin=np.array(self._begin, dtype=np.int64),
        )
