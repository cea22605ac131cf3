"""How long a request that enters now waits for its first token, from what is measured alone.

Two things can hold it up, and the longer counts:

- prompts before it: their tokens and its own, over the tokens of prompts per second that got their
  first token while some waited (waiting = throughput x wait, J. D. C. Little, "A Proof for the
  Queuing Formula L = lambda W", 1961);
- a seat, or room for its KV: the sequences that must end before it has one, and when as many will
  have ended, see `serving.admission.seat_waits`. So a queue for seats is foreseen while seats are
  still free.

Emulated seconds throughout; before anything is measured, nothing is said. Pure.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serving.admission.answer_lengths import AnswerLengths, expected_length
from serving.admission.capacity import Capacity
from serving.admission.decayed_rate import DecayedRate
from serving.admission.entry import Entry
from serving.admission.seat_waits import SeatWaits, seat_waits
from serving.admission.wait_errors import WaitErrors

MEMORY_TARGETS: Final = 5.0
"""Rates are forgotten after so many times the target. Assumed: many steps, so that one does not
decide, and few enough that a change of load is known before it is over."""

UNTARGETED_S: Final = 2.0
"""In place of the target where there is none, and waits only tell a refused client when to come
back. Assumed."""

_LOOKS_PER_TARGET: Final = 20
"""How often within a target the ends to come are looked at anew. Assumed: a wait is then told from
what was known a twentieth of the target before."""

_HORIZON_TARGETS: Final = 2.0

LOOKED_AT_MAX: Final = 512
"""Running requests that are looked at, every so many-th in the order of their turns. Neighbours in
it have made about as many tokens, so that what is left out is like what is seen; a look at 8,192
would take as long as a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAnswers:
    """Answers that are being made, [answers] each: tokens that one has, and has left at most; it
    stands for `weights` of its kind.
    """

    made_tokens: NDArray[np.float64]
    left_tokens: NDArray[np.float64]
    weights: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What would be before a request's first token, itself included.

    Attributes:
        waiting_tokens: of interactive prompts without a first token.
        waiting_sequences: of both classes, without a first token, but for its own.
        running_sequences: of both classes, with a first token.
        sequences: that have or want a seat.
        prompt_tokens, new_tokens_max: of all those sequences.
    """

    waiting_tokens: int
    waiting_sequences: int
    running_sequences: int
    sequences: int
    prompt_tokens: int
    new_tokens_max: int


class ExpectedWait:
    """Measures rates and lengths, and says how long a wait would be.

    `running` gives the entries that the engine has, in the order of their turns, whenever it is
    asked. Nothing is foreseen beyond `horizon_s`.
    """

    def __init__(self, target_s: float | None, running: Callable[[], Collection[Entry]]) -> None:
        self._target_s = UNTARGETED_S if target_s is None else target_s
        self.horizon_s = _HORIZON_TARGETS * self._target_s
        memory_s = MEMORY_TARGETS * self._target_s
        self.prompts = DecayedRate(memory_s)
        self.answers = DecayedRate(memory_s)
        self.errors = WaitErrors()
        self.lengths = AnswerLengths()
        self._seat_s = DecayedRate(memory_s)
        self._answer_share = 1.0  # of what is asked for at most; all of it before it is known
        self._running = running
        self._waits: SeatWaits | None = None
        self._waits_from_s = 0.0
        self._ended_since = 0

    def spend(self, seconds: float, *, waits: bool, running_sequences: int) -> None:
        """Let time pass, in which interactive prompts waited, and so many answers were made."""
        if waits:
            self.prompts.spend(seconds)
        if running_sequences:
            self.answers.spend(seconds)
            self._seat_s.spend(seconds)
            self._seat_s.add(seconds * running_sequences)

    def ended(self, tokens: int, *, by_itself: bool) -> None:
        """An answer is over, with so many tokens; `by_itself` unless something cut it."""
        self.lengths.add(tokens, by_itself=by_itself)
        self._ended_since += 1

    def is_short(self, demand: Demand, capacity: Capacity) -> bool:
        """Whether it does not all run at once."""
        return self._ends_needed(demand, capacity) > 0

    def kv_tokens(self, demand: Demand) -> float:
        """KV that its sequences hold when they end."""
        return self.held_kv_tokens(demand.prompt_tokens, demand.new_tokens_max)

    def held_kv_tokens(self, prompt_tokens: int, new_tokens_max: int) -> float:
        """KV of these prompts and answers when they end."""
        return prompt_tokens + self._answer_share * new_tokens_max

    def wait_s(self, demand: Demand, capacity: Capacity, now_s: float) -> float | None:
        """Emulated seconds until the last of it has its first token; None: not measured yet.

        Infinite when no seat is sure to come free.
        """
        if self.prompts.per_s is None:
            return None
        self._look_if_old(demand, capacity, now_s)
        return self.known_wait_s(demand, capacity, now_s)

    def known_wait_s(self, demand: Demand, capacity: Capacity, now_s: float) -> float | None:
        """The same from the last look at what runs, however old."""
        prompts_per_s = self.prompts.per_s
        if prompts_per_s is None:
            return None
        prompts_s = demand.waiting_tokens / prompts_per_s
        ends = self._ends_needed(demand, capacity)
        if ends <= 0:
            return prompts_s
        if self._waits is None:
            return None
        # The ends to come were looked at a moment ago, and some of them have come since.
        seats_s = self._waits.wait_s(ends + self._ended_since) - (now_s - self._waits_from_s)
        return max(prompts_s, seats_s)

    @property
    def _tokens_per_s(self) -> float | None:
        """Of one answer."""
        if not self.answers.amount or not self._seat_s.amount:
            return None
        return self.answers.amount / self._seat_s.amount

    def _ends_needed(self, demand: Demand, capacity: Capacity) -> float:
        """Sequences that must end first, for a seat and for KV."""
        seats = demand.sequences - capacity.seats
        kv_tokens = self.kv_tokens(demand)
        kv = (kv_tokens - capacity.kv_tokens) * demand.sequences / max(1, kv_tokens)
        return max(seats, kv)

    def _look_if_old(self, demand: Demand, capacity: Capacity, now_s: float) -> None:
        """Look at what runs: often while that decides, else now and then."""
        short = self.is_short(demand, capacity)
        old_s = self._target_s / _LOOKS_PER_TARGET if short else self._target_s
        tokens_per_s = self._tokens_per_s
        if tokens_per_s is None or (self._waits is not None and now_s - self._waits_from_s < old_s):
            return
        self._waits_from_s, self._ended_since = now_s, 0
        running = self._answers(demand.running_sequences)
        hazard = self.lengths.hazard(running.made_tokens, running.weights)
        asked_tokens = max(1.0, demand.new_tokens_max / demand.sequences)
        self._answer_share = expected_length(hazard, asked_tokens) / asked_tokens
        free = max(0, capacity.seats - demand.running_sequences)
        self._waits = seat_waits(
            hazard,
            made_tokens=running.made_tokens,
            left_tokens=running.left_tokens,
            weights=running.weights,
            starting=min(demand.waiting_sequences, free),
            tokens_per_s=tokens_per_s,
            horizon_s=self.horizon_s,
        )

    def _answers(self, sequences: int) -> RunningAnswers:
        """Of at most LOOKED_AT_MAX requests, which stand for all `sequences` that run."""
        entries = self._running()
        stride = -(-len(entries) // LOOKED_AT_MAX) or 1
        made: list[float] = []
        left: list[float] = []
        counts: list[int] = []
        for entry in islice(entries, 0, None, stride):
            answers = entry.sequences - entry.waiting_sequences
            if answers:
                made_tokens = (entry.made_tokens - entry.ended_tokens) / answers
                made.append(made_tokens)
                left.append(max(1.0, entry.new_tokens_max / entry.sequences - made_tokens))
                counts.append(answers)
        weights = np.array(counts, dtype=np.float64)
        return RunningAnswers(
            made_tokens=np.array(made),
            left_tokens=np.array(left),
            weights=weights * (sequences / max(1.0, weights.sum())),
        )
