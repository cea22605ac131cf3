"""Expected wait of a new request for its first token: the longer of two delays.

- Prompts before it: their tokens and its own on the average rank, timed by the cost model beside
  the current decodes (`serving.policy.admission.capacity`).
- A seat or KV: the time until enough sequences have ended (`serving.policy.admission.seat_waits`),
  then its own prompt. This foresees a queue for seats while seats are still free.

Each is corrected by a measured factor (`serving.policy.admission.wait`). Emulated seconds.
Pure.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serving.policy.admission.answer_lengths import AnswerLengths, expected_length
from serving.policy.admission.capacity import BacklogCurve, Capacity
from serving.policy.admission.entry import Entry
from serving.policy.admission.seat_waits import SeatWaits, seat_waits
from serving.policy.admission.wait import Wait, WaitFactor
from serving.policy.admission.work import UNSAID_NEW_TOKENS


@dataclass(slots=True)
class DecayedRate:
    """Amount per busy time, decaying over `memory_s` of it: a rate outlives an idle night."""

    memory_s: float
    amount: float = 0.0
    busy_s: float = 0.0

    def add(self, amount: float) -> None:
        """Count an amount."""
        self.amount += amount

    def spend(self, seconds: float) -> None:
        """Count busy time."""
        kept = math.exp(-seconds / self.memory_s)
        self.amount *= kept
        # The integral of exp(-t / memory) over the time that was spent.
        self.busy_s = self.busy_s * kept + self.memory_s * (1.0 - kept)

    @property
    def per_s(self) -> float | None:
        """None before the first amount."""
        return self.amount / self.busy_s if self.amount > 0 and self.busy_s > 0 else None


MEMORY_TARGETS: Final = 5.0
"""Time constant of rates, in targets. Assumed: many steps, so that one does not decide, yet short
enough to see a change of load before it is over."""

UNTARGETED_S: Final = 2.0
"""Replaces a missing target; waits are then only retry hints. Assumed."""

_LOOKS_PER_TARGET: Final = 20
"""Refreshes of the coming ends per target. Assumed: a wait uses data at most 1/20 target old."""

_HORIZON_TARGETS: Final = 2.0

_CURVES_PER_TARGET: Final = 50
_CURVE_CHANGE: Final = 1.0 / 16.0
"""Refresh of the decode load beside prompts: per target, and after this change of the sequences
inside. Assumed: about a step, and less than moves one."""

LOOKED_AT_MAX: Final = 512
"""Running requests sampled, evenly in the order of turns. Neighbours have made about as many
tokens; reading 8,192 would take as long as a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAnswers:
    """Running answers, [answers] each: tokens so far and left at most; `weights` of its kind."""

    made_tokens: NDArray[np.float64]
    left_tokens: NDArray[np.float64]
    weights: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitDemand:
    """The demand ahead of a request's first token, itself included.

    Attributes:
        own_tokens, own_sequences: of the request.
        waiting_tokens, waiting_sequences: of all others without a first token.
        running_sequences: with a first token.
        sequences: that have or want a seat.
        prompt_tokens, new_tokens_max: of `sequences`.
    """

    own_tokens: int
    own_sequences: int
    waiting_tokens: int
    waiting_sequences: int
    running_sequences: int
    sequences: int
    prompt_tokens: int
    new_tokens_max: int


class ExpectedWait:
    """Measures rates and lengths, and predicts waits; no seat is foreseen beyond `horizon_s`.

    `running` returns the engine's entries in the order of their turns.
    """

    def __init__(self, target_s: float | None, running: Callable[[], Collection[Entry]]) -> None:
        self._target_s = UNTARGETED_S if target_s is None else target_s
        self.horizon_s = _HORIZON_TARGETS * self._target_s
        memory_s = MEMORY_TARGETS * self._target_s
        self.answers = DecayedRate(memory_s)
        self.prompts_factor = WaitFactor(self._target_s)
        # Ends are predicted with certainty already, so that most waits for them are shorter.
        self.seats_factor = WaitFactor(self._target_s, least=1.0)
        self.lengths = AnswerLengths()
        self._seat_s = DecayedRate(memory_s)
        self._expected_tokens: float | None = None  # of an answer
        self._running = running
        self._waits: SeatWaits | None = None
        self._waits_from_s = 0.0
        self._ended_since = 0
        self._curve: BacklogCurve | None = None
        self._curve_from_s = 0.0
        self._curve_sequences = 0
        self._progress_from_s = 0.0

    def spend(self, seconds: float, *, running_sequences: int) -> None:
        """Advance time in which this many answers were made."""
        if running_sequences:
            self.answers.spend(seconds)
            self._seat_s.spend(seconds)
            self._seat_s.add(seconds * running_sequences)

    def progressed(self, now_s: float) -> None:
        """Note that the first waiting prompt begins to be computed."""
        self._progress_from_s = now_s

    def waited(self, wait: Wait, waited_s: float, now_s: float) -> None:
        """Learn from a predicted wait that is over."""
        factor = self.seats_factor if wait.is_for_seat else self.prompts_factor
        factor.add(predicted_s=wait.predicted_s, waited_s=waited_s, now_s=now_s)

    def ended(self, tokens: int, *, by_itself: bool) -> None:
        """Note an ended answer; `by_itself` unless it was cut."""
        self.lengths.add(tokens, by_itself=by_itself)
        self._ended_since += 1

    def is_short(self, demand: WaitDemand, capacity: Capacity) -> bool:
        """Whether it cannot all run at once."""
        return self._ends_needed(demand, capacity) > 0

    def kv_tokens(self, demand: WaitDemand) -> float:
        """KV tokens of its sequences when they end."""
        return self.held_kv_tokens(
            demand.prompt_tokens, demand.new_tokens_max, sequences=demand.sequences
        )

    def held_kv_tokens(self, prompt_tokens: int, new_tokens_max: int, *, sequences: int) -> float:
        """KV tokens of these prompts and answers when they end."""
        answer_tokens = self._expected_tokens
        if answer_tokens is None:
            answer_tokens = UNSAID_NEW_TOKENS
        return prompt_tokens + min(float(new_tokens_max), answer_tokens * sequences)

    def wait(self, demand: WaitDemand, capacity: Capacity, now_s: float) -> Wait:
        """The wait until its last sequence has a first token."""
        self._look_if_old(demand, capacity, now_s)
        return self.known_wait(demand, capacity, now_s)

    def known_wait(self, demand: WaitDemand, capacity: Capacity, now_s: float) -> Wait:
        """The same by the last refresh of running answers, however old."""
        curve = self._curve_of(demand, capacity, now_s)
        ranks = max(1, capacity.ranks)
        own_tokens = demand.own_tokens / min(ranks, max(1, demand.own_sequences))
        # A rank is chosen by all that it holds: a prompt more than on the average may wait there.
        mean_tokens = demand.waiting_tokens / max(1, demand.waiting_sequences)
        uneven_tokens = mean_tokens * (1.0 - 1.0 / ranks)
        rank_tokens = demand.waiting_tokens / ranks + uneven_tokens + own_tokens
        prompts_s = curve.wait_s(rank_tokens)
        factor = self.prompts_factor.value(now_s)
        if demand.waiting_sequences:
            # The first prompt of each rank is computed in part.
            first_s = curve.wait_s(demand.waiting_tokens / demand.waiting_sequences)
            prompts_s -= min(first_s, (now_s - self._progress_from_s) / factor)
        ends = max(0.0, self._ends_needed(demand, capacity))
        return Wait(
            tokens=demand.waiting_tokens + demand.own_tokens,
            prompts_s=max(0.0, prompts_s),
            prompts_factor=factor,
            ends=int(np.ceil(ends)),
            seats_s=self._seats_s(ends, now_s, curve, demand, own_tokens) if ends else 0.0,
            seats_factor=self.seats_factor.value(now_s),
            step_s=curve.step_s_at(rank_tokens),
        )

    def _seats_s(
        self, ends: float, now_s: float, curve: BacklogCurve, demand: WaitDemand, own_tokens: float
    ) -> float:
        """The longer of two times: until a seat is sure and a mean prompt computed, and until a
        seat is expected and its own prompt computed.

        With its own prompt after the sure wait, almost only short ones would enter: seats are
        scarce, prompts are not.
        """
        if self._waits is None:
            return float("inf")
        # The ends to come were looked at a moment ago, and some of them have come since.
        ends, since_s = ends + self._ended_since, now_s - self._waits_from_s
        mean_tokens = demand.prompt_tokens / demand.sequences
        sure_s = max(0.0, self._waits.wait_s(ends) - since_s) + curve.wait_s(mean_tokens)
        mean_s = max(0.0, self._waits.mean_wait_s(ends) - since_s) + curve.wait_s(own_tokens)
        return max(sure_s, mean_s)

    def _curve_of(self, demand: WaitDemand, capacity: Capacity, now_s: float) -> BacklogCurve:
        """The prompt curve beside the decodes at half of the backlog; cached."""
        curve, before = self._curve, self._curve_sequences
        if (
            curve is not None
            and now_s - self._curve_from_s < self._target_s / _CURVES_PER_TARGET
            and abs(demand.sequences - before) <= _CURVE_CHANGE * before
        ):
            return curve
        ranks = max(1, capacity.ranks)
        decodes = min(demand.running_sequences + demand.waiting_sequences / 2.0, capacity.seats)
        answer_tokens = self.held_kv_tokens(0, demand.new_tokens_max, sequences=demand.sequences)
        waiting_tokens = demand.waiting_tokens + demand.own_tokens
        self._curve = capacity.backlog_times.beside(
            decodes=decodes / ranks if demand.new_tokens_max > demand.sequences else None,
            context_tokens=(demand.prompt_tokens + answer_tokens / 2.0) / demand.sequences,
            prompt_tokens=waiting_tokens / (demand.waiting_sequences + demand.own_sequences),
        )
        self._curve_from_s, self._curve_sequences = now_s, demand.sequences
        return self._curve

    @property
    def _tokens_per_s(self) -> float | None:
        """Of one answer."""
        if not self.answers.amount or not self._seat_s.amount:
            return None
        return self.answers.amount / self._seat_s.amount

    def _ends_needed(self, demand: WaitDemand, capacity: Capacity) -> float:
        seats = demand.sequences - capacity.seats
        kv_tokens = self.kv_tokens(demand)
        kv = (kv_tokens - capacity.kv_tokens) * demand.sequences / max(1, kv_tokens)
        return max(seats, kv)

    def _look_if_old(self, demand: WaitDemand, capacity: Capacity, now_s: float) -> None:
        """Refresh the running answers: often while seats or KV are short, else once a target."""
        short = self.is_short(demand, capacity)
        old_s = self._target_s / _LOOKS_PER_TARGET if short else self._target_s
        if self._waits is not None and now_s - self._waits_from_s < old_s:
            return
        tokens_per_s = self._tokens_per_s
        if tokens_per_s is None:
            step_s = float(self._curve_of(demand, capacity, now_s).step_s[0])
            if not step_s:
                return
            tokens_per_s = 1.0 / step_s
        self._waits_from_s, self._ended_since = now_s, 0
        running = self._answers(demand.running_sequences)
        hazard = self.lengths.hazard(running.made_tokens, running.weights)
        asked_tokens = max(1.0, demand.new_tokens_max / demand.sequences)
        self._expected_tokens = expected_length(
            self.lengths.hazard(
                running.made_tokens, running.weights, assumed_tokens=UNSAID_NEW_TOKENS
            ),
            asked_tokens,
        )
        free = max(0, capacity.seats - demand.running_sequences)
        self._waits = seat_waits(
            hazard,
            made_tokens=running.made_tokens,
            left_tokens=running.left_tokens,
            weights=running.weights,
            starting=min(demand.waiting_sequences, free),
            known_ends=self.lengths.known_ends,
            tokens_per_s=tokens_per_s,
            horizon_s=self.horizon_s,
        )

    def _answers(self, sequences: int) -> RunningAnswers:
        """A sample of at most LOOKED_AT_MAX requests, for all running `sequences`."""
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
