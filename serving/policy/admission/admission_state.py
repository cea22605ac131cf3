"""State of admission: entries, their sums, and measured rates. It decides nothing."""

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from itertools import islice
from typing import Final

from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.entry import Entry, Stage
from serving.policy.admission.expected_wait import DecayedRate, ExpectedWait, WaitDemand
from serving.policy.admission.rate_limiter import RateLimiter
from serving.policy.admission.refusal import Refused
from serving.policy.admission.work import Work, WorkClass


class BatchQueue:
    """Batch work, first come first served within a key, round robin between keys.

    A queue per key; a key that had its turn goes last. Operations take constant time. Invariant:
    `len` and `tokens` match the content, and no key has an empty queue.
    """

    def __init__(self) -> None:
        self._keys: OrderedDict[str, OrderedDict[int, Entry]] = OrderedDict()
        self._arrived: OrderedDict[int, Entry] = OrderedDict()
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._arrived)

    def __iter__(self) -> Iterator[Entry]:
        """In order of arrival."""
        return iter(self._arrived.values())

    def add(self, entry: Entry) -> None:
        """Append to its key's queue."""
        self._keys.setdefault(entry.work.client.name, OrderedDict())[entry.number] = entry
        self._arrived[entry.number] = entry
        self.tokens += entry.prompt_tokens

    def heads(self) -> Iterator[Entry]:
        """The first entry of each key, in the order of turns; do not change while iterating."""
        for queue in self._keys.values():
            yield next(iter(queue.values()))

    @property
    def oldest(self) -> Entry | None:
        """The entry that has waited longest; None when empty."""
        return next(iter(self._arrived.values()), None)

    def take(self, entry: Entry) -> None:
        """Remove a head; its key goes last."""
        name = entry.work.client.name
        self.remove(entry)
        if name in self._keys:
            self._keys.move_to_end(name)

    def remove(self, entry: Entry) -> None:
        """Remove an entry from any place."""
        name = entry.work.client.name
        del self._keys[name][entry.number]
        if not self._keys[name]:
            del self._keys[name]
        del self._arrived[entry.number]
        self.tokens -= entry.prompt_tokens


@dataclass(slots=True)
class Load:
    """Sums over entries."""

    requests: int = 0
    sequences: int = 0
    prompt_tokens: int = 0
    new_tokens_max: int = 0
    waiting_sequences: int = 0
    waiting_tokens: int = 0

    def add(self, entry: Entry) -> None:
        """Count an entry."""
        self._count(entry, 1)

    def subtract(self, entry: Entry) -> None:
        """Subtract an entry, unchanged since it was added."""
        self._count(entry, -1)

    def _count(self, entry: Entry, sign: int) -> None:
        self.requests += sign
        self.sequences += sign * entry.sequences
        self.prompt_tokens += sign * entry.prompt_tokens
        self.new_tokens_max += sign * entry.new_tokens_max
        self.waiting_sequences += sign * entry.waiting_sequences
        self.waiting_tokens += sign * entry.waiting_tokens


_TURNS_MEMORY_S: Final = 60.0
"""Memory of the pace of batch turns, for retry hints. Assumed."""


@dataclass(slots=True, kw_only=True)
class AdmissionState:
    """State that `Admission` changes and the deciders read.

    Attributes:
        closed: the refusal of new work; None: the gateway is open.
        entries: at the engine, or promised to it; in the order of their turns.
        waiting: entries without all of their first tokens, by class, in the same order.
        batch_turns: prompt tokens of batch work that had its turn.
        loads: the sums of `entries`, by class.
        stay_s: emulated moving mean from entering to finishing; None before any.
    """

    limits: AdmissionLimits
    capacity: Capacity
    closed: Refused | None = None
    entries: dict[int, Entry] = field(default_factory=dict)
    waiting: dict[WorkClass, OrderedDict[int, Entry]] = field(
        default_factory=lambda: {each: OrderedDict() for each in WorkClass}
    )
    loads: dict[WorkClass, Load] = field(
        default_factory=lambda: {each: Load() for each in WorkClass}
    )
    queue: BatchQueue = field(default_factory=BatchQueue)
    books: RateLimiter = field(default_factory=RateLimiter)
    batch_turns: DecayedRate = field(default_factory=lambda: DecayedRate(_TURNS_MEMORY_S))
    stay_s: float | None = None
    expected: ExpectedWait = field(init=False)

    def __post_init__(self) -> None:
        self.expected = ExpectedWait(self.limits.ttft_target_s, self.entries.values)

    @property
    def sequences(self) -> int:
        """Sequences at the engine, or promised to it."""
        return sum(load.sequences for load in self.loads.values())

    @property
    def waiting_sequences(self) -> int:
        """Those without a first token."""
        return sum(load.waiting_sequences for load in self.loads.values())

    def demand(self, work: Work) -> WaitDemand:
        """The demand ahead of the first token of `work`, itself included."""
        interactive, batch = self.loads[WorkClass.INTERACTIVE], self.loads[WorkClass.BATCH]
        waiting_sequences = interactive.waiting_sequences + batch.waiting_sequences
        sequences = interactive.sequences + batch.sequences
        return WaitDemand(
            own_tokens=work.computed_tokens,
            own_sequences=work.sequences,
            waiting_tokens=interactive.waiting_tokens + batch.waiting_tokens,
            waiting_sequences=waiting_sequences,
            running_sequences=sequences - waiting_sequences,
            sequences=sequences + work.sequences,
            prompt_tokens=interactive.prompt_tokens + batch.prompt_tokens + work.prompt_tokens,
            new_tokens_max=interactive.new_tokens_max + batch.new_tokens_max + work.new_tokens_max,
        )

    def late_s(self, now_s: float) -> float:
        """Excess of ongoing waits over their prediction, before they end.

        An engine that stands still is *assumed* to do so as long again. The oldest percent and one
        more are left out: a grammar of its own may hold up a prompt.
        """
        waiting = self.waiting[WorkClass.INTERACTIVE]
        judged = next(islice(waiting.values(), 1 + len(waiting) // 100, None), None)
        if judged is None or judged.wait is None or math.isinf(judged.wait.seconds):
            return 0.0
        return max(0.0, now_s - judged.turn_s - judged.wait.seconds)

    def check(self) -> None:
        """Assert that entries are in their stages and sums match; slow."""
        for work_class, load in self.loads.items():
            counted = Load()
            for entry in self.entries.values():
                if entry.work_class is work_class:
                    counted.add(entry)
                    waits = entry.number in self.waiting[work_class]
                    assert entry.stage is (Stage.WAITING if waits else Stage.RUNNING)
                    assert waits == (entry.waiting_sequences > 0)
                    assert 0 <= entry.ended_tokens <= entry.made_tokens
            assert counted == load
            assert min(astuple(load)) >= 0
            assert len(self.waiting[work_class]) <= load.requests
        assert self.queue.tokens == sum(each.prompt_tokens for each in self.queue)
        assert all(each.stage is Stage.QUEUED for each in self.queue)
