"""Wait for the k-th free seat: until k ends have come with 99 % certainty.

A running answer ends within `t` more tokens by the hazard of lengths, and surely at `max_tokens`;
the next request takes its seat, and begins a new answer.
"""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serving.policy.admission.answer_lengths import EDGES
from serving.policy.admission.wait import COVERED

_SIGMAS: Final = NormalDist().inv_cdf(COVERED)

_CHANCE_MAX: Final = 0.9
"""Seats may change hands several times between two points; at most nine more ends are counted."""

_POINTS: Final = 32
"""Moments within the horizon at which ends are counted: the resolution of a wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatWaits:
    """Ends by `at_s` [points]: `sure` at least, `expected` on average, both [points]; from 0 on."""

    at_s: NDArray[np.float64]
    sure: NDArray[np.float64]
    expected: NDArray[np.float64]

    def wait_s(self, ends: float) -> float:
        """Seconds until this many surely ended, linear beyond the horizon; inf without any end."""
        return self._until_s(ends, self.sure)

    def mean_wait_s(self, ends: float) -> float:
        """Seconds until this many are expected to have ended."""
        return self._until_s(ends, self.expected)

    def _until_s(self, ends: float, ended: NDArray[np.float64]) -> float:
        if 0 < ends <= ended[-1]:
            after = int(np.searchsorted(ended, ends))  # the first moment with as many
            between = slice(after - 1, after + 1)
            return float(np.interp(ends, ended[between], self.at_s[between]))
        if ends <= 0:
            return 0.0
        if ended[-1] <= 0:
            return float("inf")
        return float(self.at_s[-1] * ends / ended[-1])


def seat_waits(
    hazard: NDArray[np.float64],
    *,
    made_tokens: NDArray[np.float64],
    left_tokens: NDArray[np.float64],
    weights: NDArray[np.float64] | float = 1.0,
    starting: float,
    known_ends: float,
    tokens_per_s: float,
    horizon_s: float,
) -> SeatWaits:
    """The coming ends of running answers and their successors.

    `hazard`: of `AnswerLengths`, from `known_ends` answers. `made_tokens`, `left_tokens` [answers]:
    so far, and left at most, for `weights` [answers] alike. `starting` sequences begin now; each
    makes `tokens_per_s`. Successors are *assumed* to ask for as much.
    """
    weight = np.broadcast_to(weights, made_tokens.shape)
    at_s = np.linspace(0.0, horizon_s, _POINTS)
    ahead = at_s * tokens_per_s  # [points]
    now = np.interp(made_tokens, EDGES, hazard)  # [answers]
    then = np.interp(made_tokens[:, None] + ahead, EDGES, hazard)  # [answers, points]
    ends = -np.expm1(now[:, None] - then)
    ends[ahead >= left_tokens[:, None]] = 1.0
    of_running = weight @ ends
    asked_tokens = made_tokens + left_tokens
    order = np.argsort(asked_tokens)
    within = np.concatenate(([0.0], np.cumsum(weight[order])))  # [answers + 1]
    shorter = np.searchsorted(asked_tokens[order], ahead, side="right")  # [points]
    had_to_end = within[shorter] / max(1.0, within[-1])
    of_new = 1.0 - (1.0 - had_to_end) * np.exp(-np.interp(ahead, EDGES, hazard))  # [points]
    ended = of_running + starting * of_new
    ended[0] = 0.0
    # Who takes a seat between two moments may end by a later one: the renewal equation, point by
    # point, with the mean over the moments between which the seat was taken.
    by_then = np.minimum((of_new[1:] + of_new[:-1]) / 2.0, _CHANCE_MAX)
    taken = np.zeros(_POINTS)
    for point in range(1, _POINTS):
        again = taken[1:point] @ by_then[point - 1 : 0 : -1]
        taken[point] = max(0.0, (ended[point] + again - taken.sum()) / (1.0 - by_then[0]))
    expected = np.cumsum(taken)
    # Each answer ends or not by itself; of those that follow, as many more or fewer as in a Poisson
    # stream. An answer that has to end is no chance.
    variance = weight @ (ends * (1.0 - ends)) + np.maximum(0.0, expected - of_running)
    # A rate that is counted from few ends is as uncertain as their number: as the variance of what
    # is by chance is about its mean, this is that of a negative binomial count.
    variance *= 1.0 + variance / max(1.0, known_ends)
    sure = np.maximum.accumulate(np.maximum(0.0, expected - _SIGMAS * np.sqrt(variance)))
    return SeatWaits(at_s=at_s, sure=sure, expected=expected)
