"""Lengths of answers: the hazard that an answer ends by itself with its next token.

The Nelson-Aalen estimate (O. Aalen, "Nonparametric inference for a family of counting processes",
1978): per range of lengths, ended answers over tokens generated there. Running answers count with
their tokens so far: a mean of ended ones would see short answers first. A range without an end has
no hazard: its answers go on to `max_tokens`.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

_EDGES_PER_OCTAVE: Final = 8
_OCTAVES: Final = 22

EDGES: Final[NDArray[np.float64]] = np.concatenate(
    ([0.0], np.unique(np.round(2 ** np.arange(0, _OCTAVES, 1 / _EDGES_PER_OCTAVE))))
)
"""Ranges of lengths [ranges + 1]: one token, then eighths of an octave, to 4 million."""

ENDED_KEPT: Final = 1_000
"""Ends after which 1/e of an end's weight is left. Assumed: enough to tell 1 % from none."""

_GROWTH: Final = 1.0 / (1.0 - 1.0 / ENDED_KEPT)
_WEIGHT_MAX: Final = 1e6  # far from where sums of doubles lose anything

_CHANCE_MAX: Final = 1.0 - 1e-9  # its logarithm is still a number

_START: Final = EDGES[:-1]
_WIDTH: Final = np.diff(EDGES)


class AnswerLengths:
    """Learns from answers that end; the newest count most."""

    def __init__(self) -> None:
        self._ended = np.zeros(len(_WIDTH))  # [ranges]
        self._made_tokens = np.zeros(len(_WIDTH))  # [ranges]
        self._weight = 1.0  # of the newest answer: it grows, in place of all others' becoming less

    def add(self, tokens: float, *, by_itself: bool) -> None:
        """Add an ended answer; a cut one counts only for its tokens."""
        self._weight *= _GROWTH
        if self._weight > _WEIGHT_MAX:
            self._ended /= self._weight
            self._made_tokens /= self._weight
            self._weight = 1.0
        place = int(np.searchsorted(EDGES, tokens, side="left")) - 1
        place = min(max(0, place), len(_WIDTH) - 1)
        self._made_tokens[:place] += self._weight * _WIDTH[:place]
        self._made_tokens[place] += self._weight * (tokens - _START[place])
        if by_itself:
            self._ended[place] += self._weight

    @property
    def known_ends(self) -> float:
        """Answers that ended by themselves, weighted by age."""
        return float(self._ended.sum() / self._weight)

    def hazard(
        self,
        running_tokens: NDArray[np.float64],
        weights: NDArray[np.float64] | float = 1.0,
        *,
        assumed_tokens: float | None = None,
    ) -> NDArray[np.float64]:
        """Cumulative hazard H at each edge, [ranges + 1]: the share exp(-H) lasts.

        `running_tokens` [answers]: so far, each for `weights` [answers] alike. `assumed_tokens`:
        mean of one assumed answer, which gives unknown ranges a hazard.
        """
        made_tokens = self._made_tokens / self._weight + made_in_ranges(running_tokens, weights)
        ended = self._ended / self._weight
        if assumed_tokens is not None:
            assumed_made = -assumed_tokens * np.diff(np.exp(-EDGES / assumed_tokens))
            made_tokens = made_tokens + assumed_made
            ended = ended + assumed_made / assumed_tokens
        per_token = np.divide(
            ended,
            made_tokens,
            out=np.zeros_like(made_tokens),
            where=made_tokens > 0,
        )
        # An end is possible once a token, so that it lasts with (1 - chance) to the tokens' power.
        lasting = np.log1p(-np.minimum(per_token, _CHANCE_MAX))
        return np.concatenate(([0.0], np.cumsum(-lasting * _WIDTH)))


def expected_length(hazard: NDArray[np.float64], asked_tokens: float) -> float:
    """Expected tokens of an answer under `hazard`, at most `asked_tokens`."""
    lasting = np.concatenate(([0.0], np.cumsum(np.exp(-hazard[:-1]) * _WIDTH)))
    return float(np.interp(asked_tokens, EDGES, lasting))


def made_in_ranges(
    tokens: NDArray[np.float64], weights: NDArray[np.float64] | float = 1.0
) -> NDArray[np.float64]:
    """Tokens in each range, summed over answers with `weights`: [answers] -> [ranges]."""
    order = np.argsort(tokens)
    total, weight = tokens[order], np.broadcast_to(weights, tokens.shape)[order]
    below = np.searchsorted(total, EDGES)  # [ranges + 1]: answers that are shorter than the edge
    counts = np.concatenate(([0.0], np.cumsum(weight)))
    sums = np.concatenate(([0.0], np.cumsum(weight * total)))
    inside = np.diff(sums[below]) - np.diff(counts[below]) * _START
    made: NDArray[np.float64] = inside + (counts[-1] - counts[below[1:]]) * _WIDTH
    return made
