"""Who enters, who waits and who is told to come back: the door's decisions, without a clock.

| stage | event | next |
|---|---|---|
| - | `enter`, interactive | waiting, or Refused |
| - | `enter`, batch | queued, or Refused |
| queued | `turns`: the engine has room that interactive work leaves | waiting |
| queued | `overdue`: it has waited `batch_wait_s`, or the door drains | left (refused) |
| waiting | `first_token` of the last of its sequences | running |
| any | `leave` | left |

Interactive work enters while what waits stays within the queue's bounds, and within the target for
the first token where there is one. Batch work has its turn when seats and KV are free beyond the
reserve, and when prompts that wait, its own included, fit one step of the engine: then interactive
work waits for one step more at most.

All times are emulated seconds and never run back; a `Refused` tells wall seconds. Pure: no clock,
no asyncio.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import astuple
from itertools import islice
from typing import Final

from serving.admission import entry_parts
from serving.admission.batch_queue import BatchQueue
from serving.admission.capacity import Capacity
from serving.admission.class_counts import ClassCounts
from serving.admission.decayed_rate import DecayedRate
from serving.admission.door_limits import DoorLimits
from serving.admission.door_state import ClassState, DoorState
from serving.admission.entry import Entry, Outcome, Stage
from serving.admission.entry_parts import Counted
from serving.admission.expected_wait import Demand, ExpectedWait
from serving.admission.key_books import KeyBooks
from serving.admission.load import Load
from serving.admission.refusal import RateState, RefusalReason, Refused
from serving.admission.work import Client, Work, WorkClass

MARGIN_SHARE_MAX: Final = 0.5
"""Of the target, that errors of the past may take from it. Without a bound one disturbance (a chip
that is lost) would close the door until all that saw it is forgotten."""

UNKNOWN_WAIT_S: Final = 1.0
"""What a refused client is told to wait, emulated, before anything is measured. Assumed."""

_TURNS_MEMORY_S: Final = 60.0
"""Over which the pace of batch work's turns is taken, to tell the next when to come. Assumed."""

_INTERACTIVE, _BATCH = WorkClass.INTERACTIVE, WorkClass.BATCH


class Admission:
    """The state of one door.

    Invariants (`check`): what has entered is in exactly one stage, sums are those of the entries,
    and `entered` = inside + `left`, for each class.
    """

    def __init__(self, limits: DoorLimits, capacity: Capacity, *, now_s: float = 0.0) -> None:
        self.limits = limits
        self.capacity = capacity
        self.closed: Refused | None = None
        self.expected = ExpectedWait(limits.ttft_target_s, self._engines)
        self._books = KeyBooks()
        self._queue = BatchQueue()
        self._loads = {each: Load() for each in WorkClass}
        self._inside: dict[int, Entry] = {}  # the engine has them, or has been promised them
        self._waiting: dict[WorkClass, OrderedDict[int, Entry]] = {
            each: OrderedDict() for each in WorkClass
        }
        self._counts = {each: ClassCounts() for each in WorkClass}
        self._batch_turns = DecayedRate(_TURNS_MEMORY_S)
        self._stay_s: float | None = None
        self._numbers = 0
        self._at_s = now_s

    # ---- entering

    def enter(self, work: Work, now_s: float) -> Entry:
        """Let `work` in, or raise Refused, which is counted; batch work may have to wait."""
        self._pass(now_s)
        refused = self._refusal(work, now_s)
        if refused is not None:
            self._counts[work.work_class].refuse(refused.reason)
            raise refused
        self._numbers += 1
        entry = Entry.of(work, number=self._numbers, now_s=now_s)
        self._books.charge(work.client, entry.charged_tokens, now_s)
        self._counts[work.work_class].entered += 1
        if work.work_class is _BATCH:
            self._queue.add(entry)
        else:
            entry.predicted_s = self._expected_s(work, now_s)
            self._give_turn(entry, now_s)
        return entry

    def would_refuse(self, client: Client, work_class: WorkClass, now_s: float) -> Refused | None:
        """Why the smallest request of `client` would be refused now; counts nothing."""
        self._pass(now_s)
        least = Work(
            client=client, work_class=work_class, sequences=1, prompt_tokens=1, new_tokens_max=1
        )
        return self._refusal(least, now_s)

    def refuse(self, refused: Refused, work_class: WorkClass) -> None:
        """Count what was refused by the answer of `would_refuse`."""
        self._counts[work_class].refuse(refused.reason)

    def rate(self, client: Client, now_s: float) -> RateState:
        """What is left of the client's limits; its seconds are wall."""
        return self._books.rate(client, now_s, self.capacity.dilation)

    def _refusal(self, work: Work, now_s: float) -> Refused | None:
        if self.closed is not None:
            return self.closed
        over = self._books.over_limit(work.client, work.prompt_tokens + work.new_tokens_max, now_s)
        if over is not None:
            wait_s = over.wait_s if over.wait_s is not None else self._stay_hint_s(work.client)
            return self._refused(over.reason, over.message, wait_s, work.client, now_s)
        if work.work_class is _BATCH:
            return self._batch_refusal(work, now_s)
        return self._queue_refusal(work, now_s) or self._target_refusal(work, now_s)

    def _batch_refusal(self, work: Work, now_s: float) -> Refused | None:
        limits, queue = self.limits, self._queue
        if len(queue) >= limits.batch_queue_requests:
            message = f"{len(queue):,} batch requests wait, as many as may"
            reason, excess = RefusalReason.QUEUE_REQUESTS, queue.tokens // len(queue)
        elif queue.tokens + work.prompt_tokens > limits.batch_queue_tokens and len(queue):
            message = (
                f"batch requests of {queue.tokens:,} tokens wait, and "
                f"{limits.batch_queue_tokens:,} may"
            )
            reason = RefusalReason.QUEUE_TOKENS
            excess = queue.tokens + work.prompt_tokens - limits.batch_queue_tokens
        else:
            return None
        return self._refused(
            reason, message, _seconds(excess, self._batch_turns.per_s), work.client, now_s
        )

    def _queue_refusal(self, work: Work, now_s: float) -> Refused | None:
        limits, load = self.limits, self._loads[_INTERACTIVE]
        waiting = len(self._waiting[_INTERACTIVE])
        if waiting >= limits.queue_requests:
            message = f"{waiting:,} requests wait for their first token, as many as may"
            reason, excess = RefusalReason.QUEUE_REQUESTS, load.waiting_tokens // waiting
        elif waiting and load.waiting_tokens + work.prompt_tokens > limits.queue_tokens:
            message = (
                f"requests of {load.waiting_tokens:,} tokens wait for their first token, and "
                f"{limits.queue_tokens:,} may"
            )
            reason = RefusalReason.QUEUE_TOKENS
            excess = load.waiting_tokens + work.prompt_tokens - limits.queue_tokens
        else:
            return None
        wait_s = _seconds(excess, self.expected.prompts.per_s)
        return self._refused(reason, message, wait_s, work.client, now_s)

    def _target_refusal(self, work: Work, now_s: float) -> Refused | None:
        target_s = self.limits.ttft_target_s
        if target_s is None:
            return None
        demand = self._demand(work)
        short = self.expected.is_short(demand, self.capacity)
        if not self._waiting[_INTERACTIVE] and not short:
            return None  # an engine that does nothing else is the best there is
        expected_s = self.expected.wait_s(demand, self.capacity, now_s)
        if expected_s is None:
            fits = demand.waiting_tokens <= self.capacity.prefill_tokens_per_step
            if fits and (not short or not self._waiting[_INTERACTIVE]):
                return None
            message = "nothing is measured yet, and more waits than one step computes"
            return self._refused(
                RefusalReason.TTFT_TARGET, message, UNKNOWN_WAIT_S, work.client, now_s
            )
        bound_s = target_s - self._margin_s(target_s, now_s)
        if expected_s <= bound_s:
            return None
        message = (
            f"the first token would take about {expected_s:.3g} s, and {target_s:g} s are promised"
        )
        return self._refused(
            RefusalReason.TTFT_TARGET, message, expected_s - bound_s, work.client, now_s
        )

    def _refused(
        self, reason: RefusalReason, message: str, wait_s: float, client: Client, now_s: float
    ) -> Refused:
        return Refused(
            reason,
            message,
            retry_after_s=wait_s * self.capacity.dilation,
            rate=self.rate(client, now_s),
        )

    # ---- what is expected

    def _demand(self, work: Work) -> Demand:
        interactive, batch = self._loads[_INTERACTIVE], self._loads[_BATCH]
        return Demand(
            waiting_tokens=interactive.waiting_tokens + work.prompt_tokens,
            waiting_sequences=interactive.waiting_sequences + batch.waiting_sequences,
            sequences=interactive.sequences + batch.sequences + work.sequences,
            prompt_tokens=interactive.prompt_tokens + batch.prompt_tokens + work.prompt_tokens,
            new_tokens_max=interactive.new_tokens_max + batch.new_tokens_max + work.new_tokens_max,
        )

    def _expected_s(self, work: Work, now_s: float) -> float | None:
        return self.expected.wait_s(self._demand(work), self.capacity, now_s)

    def _engines(self) -> Iterable[Entry]:
        return self._inside.values()

    def _margin_s(self, target_s: float, now_s: float) -> float:
        """By how much waits are longer than expected: those that are over, and those that last.

        Of those that last, the oldest percent are left out, and one more: one prompt alone may be
        held up by its own grammar.
        """
        waiting = self._waiting[_INTERACTIVE]
        margin_s = self.expected.errors.margin_s
        judged = next(islice(waiting.values(), 1 + len(waiting) // 100, None), None)
        if judged is not None and judged.predicted_s is not None:
            margin_s = max(margin_s, now_s - judged.turn_s - judged.predicted_s)
        return min(margin_s, MARGIN_SHARE_MAX * target_s)

    def _stay_hint_s(self, client: Client) -> float:
        """Until one of the client's requests is over, of which it has its limit inside."""
        stay_s = self._stay_s if self._stay_s is not None else UNKNOWN_WAIT_S
        return stay_s / max(1, self._books.inside(client.name))

    # ---- what happens to an entry

    def turns(self, now_s: float) -> list[Entry]:
        """Give batch work its turn while there is room; returns whose it is."""
        self._pass(now_s)
        given: list[Entry] = []
        while self.closed is None and (entry := self._queue.next) and self._has_room(entry):
            self._queue.take()
            self._batch_turns.add(entry.prompt_tokens)
            self._give_turn(entry, now_s)
            given.append(entry)
        return given

    def overdue(self, now_s: float) -> list[Entry]:
        """Turn away batch work that has waited too long; returns it."""
        self._pass(now_s)
        late: list[Entry] = []
        while (entry := self._queue.oldest) and (
            now_s - entry.entered_s >= self.limits.batch_wait_s
        ):
            self._turn_away(entry, RefusalReason.BATCH_WAIT, now_s)
            late.append(entry)
        return late

    def close(self, refused: Refused, now_s: float) -> list[Entry]:
        """Refuse new work with this answer; a drain also turns away, and returns, what waits."""
        self._pass(now_s)
        self.closed = refused
        queued = list(self._queue) if refused.reason is RefusalReason.DRAINING else []
        for entry in queued:
            self._turn_away(entry, refused.reason, now_s)
        return queued

    def open(self) -> None:
        """Let new work enter again."""
        self.closed = None

    def begin(self, entry: Entry, counted: Counted, now_s: float) -> None:
        """The engine takes sequences of an entry that has its turn, and has counted them."""
        self._pass(now_s)
        assert entry.stage is not Stage.QUEUED, "batch work begins after its turn"
        if entry.stage is Stage.LEFT:
            return
        load = self._loads[entry.work_class]
        load.subtract(entry)
        entry_parts.begin(entry, counted)
        load.add(entry)
        self._waits_again(entry)

    def first_token(self, entry: Entry, now_s: float) -> bool:
        """One sequence that has begun has its first token; returns whether it is the entry's
        first.
        """
        self._pass(now_s)
        if entry.stage is Stage.LEFT or entry_parts.waiting_begun(entry) == 0:
            return False
        load = self._loads[entry.work_class]
        load.subtract(entry)
        tokens = entry_parts.first_token(entry)
        load.add(entry)
        if entry.work_class is _INTERACTIVE:
            self.expected.prompts.add(tokens)
        self._runs_if_all(entry)
        is_first, entry.has_token = not entry.has_token, True
        if is_first and entry.predicted_s is not None:
            waited_s = now_s - entry.turn_s
            target_s = self.limits.ttft_target_s
            self.expected.errors.add(
                predicted_s=entry.predicted_s,
                waited_s=waited_s,
                is_late=target_s is not None and waited_s > target_s,
            )
        return is_first

    def made(self, entry: Entry, tokens: int) -> None:
        """The engine has made so many more tokens of the entry's answers."""
        entry.made_tokens += tokens
        self.expected.answers.add(tokens)

    def end(self, entry: Entry, *, sequences: int, without_token: int, now_s: float) -> None:
        """Sequences that had begun are over, some of them without a token."""
        self._pass(now_s)
        if entry.stage is Stage.LEFT:
            return
        load = self._loads[entry.work_class]
        load.subtract(entry)
        asked_tokens = entry.new_tokens_max / max(1, entry.sequences)
        for _ in range(sequences - without_token):
            made_tokens = entry.made_tokens / entry.work.sequences
            self.expected.ended(made_tokens, asked_tokens=asked_tokens)
        entry_parts.end(entry, sequences=sequences, without_token=without_token)
        load.add(entry)
        self._runs_if_all(entry)

    def leave(self, entry: Entry, outcome: Outcome, now_s: float) -> None:
        """The entry is over, however far it was; again it changes nothing."""
        self._pass(now_s)
        if entry.stage is Stage.LEFT:
            return
        if entry.stage is Stage.QUEUED:
            self._queue.remove(entry)
        else:
            del self._inside[entry.number]
            self._loads[entry.work_class].subtract(entry)
            self._waiting[entry.work_class].pop(entry.number, None)
        used_tokens = entry.counted_tokens + entry.made_tokens
        self._books.correct(entry.work.client, used_tokens - entry.charged_tokens, now_s)
        self._books.leave(entry.work.client)
        if outcome is Outcome.FINISHED:
            stay_s = now_s - entry.entered_s
            self._stay_s = stay_s if self._stay_s is None else 0.9 * self._stay_s + 0.1 * stay_s
        entry.stage = Stage.LEFT
        self._counts[entry.work_class].left[outcome] += 1

    def _turn_away(self, entry: Entry, reason: RefusalReason, now_s: float) -> None:
        self.leave(entry, Outcome.REFUSED, now_s)
        self._counts[entry.work_class].refuse(reason)

    def _give_turn(self, entry: Entry, now_s: float) -> None:
        entry.stage = Stage.WAITING
        entry.turn_s = now_s
        self._inside[entry.number] = entry
        self._loads[entry.work_class].add(entry)
        self._waiting[entry.work_class][entry.number] = entry

    def _runs_if_all(self, entry: Entry) -> None:
        if entry.waiting_sequences == 0 and entry.stage is Stage.WAITING:
            entry.stage = Stage.RUNNING
            del self._waiting[entry.work_class][entry.number]

    def _waits_again(self, entry: Entry) -> None:
        """More sequences than were foreseen may come when all others run."""
        if entry.waiting_sequences and entry.stage is Stage.RUNNING:
            entry.stage = Stage.WAITING
            self._waiting[entry.work_class][entry.number] = entry

    def _has_room(self, entry: Entry) -> bool:
        """Whether batch work may go to the engine now; see the module."""
        demand, share = self._demand(entry.work), 1.0 - self.limits.reserve
        own = demand.sequences == entry.work.sequences  # what never fits goes alone
        room = own or (
            demand.sequences <= share * self.capacity.seats
            and self.expected.kv_tokens(demand) <= share * self.capacity.kv_tokens
        )
        waiting_tokens = sum(load.waiting_tokens for load in self._loads.values())
        fits_step = waiting_tokens + entry.prompt_tokens <= self.capacity.prefill_tokens_per_step
        return room and (fits_step or waiting_tokens == 0)

    def _pass(self, now_s: float) -> None:
        """Let time pass, and count what it was spent with."""
        seconds = now_s - self._at_s
        if seconds <= 0:
            return
        self._at_s = now_s
        interactive, batch = self._loads[_INTERACTIVE], self._loads[_BATCH]
        waiting = interactive.waiting_sequences + batch.waiting_sequences
        self.expected.spend(
            seconds,
            waits=interactive.waiting_sequences > 0,
            running_sequences=interactive.sequences + batch.sequences - waiting,
        )
        if len(self._queue):
            self._batch_turns.spend(seconds)

    # ---- what can be seen

    def state(self, now_s: float) -> DoorState:
        """Counts of this moment."""
        self._pass(now_s)
        least = Work(
            client=Client(),
            work_class=_INTERACTIVE,
            sequences=1,
            prompt_tokens=1,
            new_tokens_max=1,
        )
        target_s = self.limits.ttft_target_s
        return DoorState(
            classes={each: self._class_state(each) for each in WorkClass},
            sequences=sum(load.sequences for load in self._loads.values()),
            expected_wait_s=self._expected_s(least, now_s),
            margin_s=self._margin_s(target_s, now_s) if target_s is not None else 0.0,
            is_open=self.closed is None,
        )

    def check(self) -> None:
        """Assert the invariants, from the entries; slow."""
        for work_class, load in self._loads.items():
            counted = Load()
            entries = [each for each in self._inside.values() if each.work_class is work_class]
            for entry in entries:
                counted.add(entry)
                assert entry.stage in (Stage.WAITING, Stage.RUNNING)
                assert (entry.stage is Stage.WAITING) == (entry.waiting_sequences > 0)
                assert (entry.number in self._waiting[work_class]) == (entry.waiting_sequences > 0)
            assert counted == load
            assert min(astuple(load)) >= 0
            counts, queued = self._counts[work_class], self._class_state(work_class).queued
            assert counts.entered == len(entries) + queued + sum(counts.left.values())
            assert len(self._waiting[work_class]) <= len(entries)
        assert self._queue.tokens == sum(each.prompt_tokens for each in self._queue)
        assert all(each.stage is Stage.QUEUED for each in self._queue)

    def _class_state(self, work_class: WorkClass) -> ClassState:
        load, counts = self._loads[work_class], self._counts[work_class]
        queued = len(self._queue) if work_class is _BATCH else 0
        return ClassState(
            in_flight=load.requests + queued,
            queued=queued,
            queued_tokens=self._queue.tokens if work_class is _BATCH else 0,
            waiting=len(self._waiting[work_class]),
            waiting_tokens=load.waiting_tokens,
            entered=counts.entered,
            left=dict(counts.left),
            refused=dict(counts.refused),
        )


def _seconds(tokens: int, per_s: float | None) -> float:
    """Until so many tokens are through, at the rate that is measured."""
    return UNKNOWN_WAIT_S if per_s is None else tokens / per_s
