"""Admission control: admit, queue or reject a request. Pure: no clock, no asyncio.

| stage | event | next |
|---|---|---|
| - | `enter`, interactive | waiting, or Refused |
| - | `enter`, batch | queued, or Refused |
| queued | `turns`: the engine has room that interactive work leaves | waiting |
| queued | `overdue`: it has waited `batch_wait_s`, or the gateway drains | left (refused) |
| waiting | `first_token` of the last of its sequences | running |
| any | `leave` | left |

Interactive work enters while the waiting work is within the queue's bounds and the TTFT target;
batch work gets turns that delay it by at most one step of the engine: both rules, and all refusals,
are `serving.policy.admission.admission_rules`. Times are emulated seconds and never run back; a
`Refused` carries wall seconds.
"""

import math

from serving.policy.admission.admission_counts import AdmissionCounts, ClassCounts, ClassState
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.admission_rules import (
    batch_pace_s,
    excess_refusal,
    next_turn,
    refusal,
)
from serving.policy.admission.admission_state import AdmissionState
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.entry import Counted, Entry, Outcome, Stage
from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from serving.policy.admission.work import Client, Work, WorkClass

_BATCH = WorkClass.BATCH


class Admission:
    """One gateway's admission. Invariants (`check`): an entry is in exactly one stage; sums match
    the entries; per class, `entered` = inside + `left`.
    """

    def __init__(self, limits: AdmissionLimits, capacity: Capacity) -> None:
        self._inside = AdmissionState(limits=limits, capacity=capacity)
        self._counts = {each: ClassCounts() for each in WorkClass}
        self._numbers = 0
        self._at_s = 0.0

    @property
    def limits(self) -> AdmissionLimits:
        """The gateway's bounds."""
        return self._inside.limits

    @property
    def capacity(self) -> Capacity:
        """The engine's capacity now; set by the caller."""
        return self._inside.capacity

    @capacity.setter
    def capacity(self, capacity: Capacity) -> None:
        self._inside.capacity = capacity

    @property
    def closed(self) -> Refused | None:
        """The refusal of new work while the gateway is closed; raised only as copies."""
        return self._inside.closed

    # ---- entering

    def enter(self, work: Work, now_s: float) -> Entry:
        """Admit or queue `work`; raises Refused, which is counted."""
        self._pass(now_s)
        refused = refusal(self._inside, work, now_s)
        if refused is not None:
            self._counts[work.work_class].refuse(refused.reason)
            raise refused
        self._numbers += 1
        entry = Entry.of(work, number=self._numbers, now_s=now_s)
        self._inside.books.charge(
            work.client, entry.charged_tokens, now_s, sequences=entry.charged_sequences
        )
        self._counts[work.work_class].entered += 1
        if work.work_class is _BATCH:
            self._inside.queue.add(entry)
        else:
            entry.wait = self._inside.expected.known_wait(
                self._inside.demand(work), self.capacity, now_s
            )
            self._give_turn(entry, now_s)
        return entry

    def would_refuse(self, client: Client, work_class: WorkClass, now_s: float) -> Refused | None:
        """The refusal of the smallest request of `client` now, or None; counts nothing."""
        self._pass(now_s)
        return refusal(self._inside, Work.least(client, work_class), now_s)

    def refuse(self, refused: Refused, work_class: WorkClass) -> None:
        """Count a refusal that `would_refuse` returned."""
        self._counts[work_class].refuse(refused.reason)

    def rate(self, client: Client, now_s: float) -> RateState:
        """Remaining limits of the client; wall seconds."""
        return self._inside.books.rate(client, now_s, self.capacity.dilation)

    # ---- what happens to an entry

    def turns(self, now_s: float) -> list[Entry]:
        """Admit queued batch work while there is capacity; returns the admitted entries."""
        self._pass(now_s)
        given: list[Entry] = []
        while self.closed is None and (entry := next_turn(self._inside)):
            self._inside.queue.take(entry)
            self._inside.batch_turns.add(entry.prompt_tokens)
            self._give_turn(entry, now_s)
            given.append(entry)
        return given

    def overdue(self, now_s: float) -> list[tuple[Entry, Refused]]:
        """Refuse overdue batch work; returns each entry with its refusal."""
        self._pass(now_s)
        wait_s, queue = self._inside.limits.batch_wait_s, self._inside.queue
        message = f"it has waited {wait_s:g} s, as long as it may"
        late: list[tuple[Entry, Refused]] = []
        while (entry := queue.oldest) and now_s - entry.entered_s >= wait_s:
            retry_after_s = batch_pace_s(self._inside, queue.tokens // len(queue))
            refused = Refused(
                RefusalReason.BATCH_WAIT,
                message,
                retry_after_s=retry_after_s * self.capacity.dilation,
                rate=RateState(),
            )
            late.append(self._turned_away(entry, refused, now_s))
        return late

    def close(self, refused: Refused, now_s: float) -> list[tuple[Entry, Refused]]:
        """Refuse new work with copies of `refused`; a drain also refuses and returns the queue."""
        self._pass(now_s)
        self._inside.closed = refused
        queued = list(self._inside.queue) if refused.reason is RefusalReason.DRAINING else []
        return [self._turned_away(entry, refused, now_s) for entry in queued]

    def open(self) -> None:
        """Let new work enter."""
        self._inside.closed = None

    def declare(self, entry: Entry, counted: Counted, now_s: float) -> None:
        """Charge the key for what `counted` adds to the estimate, before the engine gets it; raises
        Refused, which is counted, and then charges nothing.
        """
        self._pass(now_s)
        if entry.stage is Stage.LEFT:
            return
        entry.declared_sequences += counted.sequences
        entry.declared_tokens += counted.prompt_tokens + counted.new_tokens_max
        sequences = max(0, entry.declared_sequences - entry.charged_sequences)
        tokens = max(0, entry.declared_tokens - entry.charged_tokens)
        if not sequences and not tokens:
            return
        client = entry.work.client
        refused = excess_refusal(
            self._inside, client, tokens=tokens, sequences=sequences, now_s=now_s
        )
        if refused is not None:
            self._counts[entry.work_class].refuse(refused.reason)
            raise refused
        self._inside.books.charge(client, tokens, now_s, sequences=sequences, requests=0)
        entry.charged_sequences += sequences
        entry.charged_tokens += tokens

    def begin(self, entry: Entry, counted: Counted, now_s: float) -> None:
        """Replace the estimate by the engine's count of sequences that begin."""
        self._pass(now_s)
        assert entry.stage is not Stage.QUEUED, "batch work begins after its turn"
        if entry.stage is Stage.LEFT:
            return
        load = self._inside.loads[entry.work_class]
        load.subtract(entry)
        entry.begin(counted)
        load.add(entry)
        self._waits_again(entry)

    def first_token(self, entry: Entry, now_s: float) -> bool:
        """Note a sequence's first token; returns whether it is the entry's first."""
        self._pass(now_s)
        if entry.stage is Stage.LEFT or entry.waiting_begun == 0:
            return False
        load = self._inside.loads[entry.work_class]
        load.subtract(entry)
        entry.first_token()
        load.add(entry)
        self._inside.expected.progressed(now_s)
        self._runs_if_all(entry)
        is_first, entry.has_token = not entry.has_token, True
        if entry.stage is Stage.RUNNING and entry.wait is not None:
            self._inside.expected.waited(entry.wait, now_s - entry.turn_s, now_s)
            entry.wait = None
        return is_first

    def made(self, entry: Entry, tokens: int) -> None:
        """Add generated tokens to the entry."""
        if entry.stage is Stage.LEFT:
            return
        entry.made_tokens += tokens
        self._inside.expected.answers.add(tokens)

    def end(self, entry: Entry, *, made_tokens: int, by_itself: bool, now_s: float) -> None:
        """End one sequence; `by_itself` unless `max_tokens`, its client or a deadline cut it."""
        self._pass(now_s)
        if entry.stage is Stage.LEFT:
            return
        load = self._inside.loads[entry.work_class]
        load.subtract(entry)
        entry.end(sequences=1, without_token=int(made_tokens == 0))
        entry.ended_tokens += made_tokens
        load.add(entry)
        if made_tokens:
            self._inside.expected.ended(made_tokens, by_itself=by_itself)
        self._runs_if_all(entry)

    def leave(self, entry: Entry, outcome: Outcome, now_s: float) -> None:
        """Remove the entry from any stage; idempotent."""
        self._pass(now_s)
        if entry.stage is Stage.LEFT:
            return
        if entry.stage is Stage.QUEUED:
            self._inside.queue.remove(entry)
        else:
            del self._inside.entries[entry.number]
            self._inside.loads[entry.work_class].subtract(entry)
            self._inside.waiting[entry.work_class].pop(entry.number, None)
        used_tokens = entry.counted_tokens + entry.made_tokens
        self._inside.books.correct(entry.work.client, used_tokens - entry.charged_tokens, now_s)
        self._inside.books.leave(entry.work.client, sequences=entry.charged_sequences)
        if outcome is Outcome.FINISHED:
            stay_s = now_s - entry.entered_s
            last_s = self._inside.stay_s
            self._inside.stay_s = stay_s if last_s is None else 0.9 * last_s + 0.1 * stay_s
        entry.stage = Stage.LEFT
        self._counts[entry.work_class].left[outcome] += 1

    def _turned_away(self, entry: Entry, why: Refused, now_s: float) -> tuple[Entry, Refused]:
        """Refuse the entry, with its key's present `rate`: limits may have changed."""
        self.leave(entry, Outcome.REFUSED, now_s)
        self._counts[entry.work_class].refuse(why.reason)
        name = entry.work.client.name
        return entry, why.again(self._inside.books.rate_of(name, now_s, self.capacity.dilation))

    def _give_turn(self, entry: Entry, now_s: float) -> None:
        if not self._inside.waiting_sequences:
            self._inside.expected.progressed(now_s)
        entry.stage = Stage.WAITING
        entry.turn_s = now_s
        self._inside.entries[entry.number] = entry
        self._inside.loads[entry.work_class].add(entry)
        self._inside.waiting[entry.work_class][entry.number] = entry

    def _runs_if_all(self, entry: Entry) -> None:
        if entry.waiting_sequences == 0 and entry.stage is Stage.WAITING:
            entry.stage = Stage.RUNNING
            del self._inside.waiting[entry.work_class][entry.number]

    def _waits_again(self, entry: Entry) -> None:
        """More sequences than estimated may begin when all others run."""
        if entry.waiting_sequences and entry.stage is Stage.RUNNING:
            entry.stage = Stage.WAITING
            self._inside.waiting[entry.work_class][entry.number] = entry

    def _pass(self, now_s: float) -> None:
        """Advance time and account it to the rates."""
        seconds = now_s - self._at_s
        if seconds <= 0:
            return
        self._at_s = now_s
        waiting_sequences = self._inside.waiting_sequences
        self._inside.expected.spend(
            seconds,
            running_sequences=self._inside.sequences - waiting_sequences,
        )
        if len(self._inside.queue):
            self._inside.batch_turns.spend(seconds)

    # ---- what can be seen

    def state(self, now_s: float) -> AdmissionCounts:
        """Present counts."""
        self._pass(now_s)
        demand = self._inside.demand(Work.least(Client(), WorkClass.INTERACTIVE))
        wait = self._inside.expected.known_wait(demand, self.capacity, now_s)
        is_known = 0.0 < wait.seconds < math.inf
        return AdmissionCounts(
            classes={each: self.class_state(each) for each in WorkClass},
            sequences=self._inside.sequences,
            expected_wait_s=wait.predicted_s if is_known else None,
            margin_s=max(0.0, wait.seconds - wait.predicted_s) if is_known else 0.0,
            is_open=self.closed is None,
        )

    def class_state(self, work_class: WorkClass) -> ClassState:
        """Counts of one class; cheap."""
        load, counts = self._inside.loads[work_class], self._counts[work_class]
        queue = self._inside.queue
        queued = len(queue) if work_class is _BATCH else 0
        return ClassState(
            in_flight=load.requests + queued,
            queued=queued,
            queued_tokens=queue.tokens if work_class is _BATCH else 0,
            waiting=len(self._inside.waiting[work_class]),
            waiting_tokens=load.waiting_tokens,
            entered=counts.entered,
            left=dict(counts.left),
            refused=dict(counts.refused),
        )

    def check(self) -> None:
        """Assert the invariants, from the entries; slow."""
        self._inside.check()
        for work_class, counts in self._counts.items():
            in_flight = self.class_state(work_class).in_flight
            assert counts.entered == in_flight + sum(counts.left.values())
