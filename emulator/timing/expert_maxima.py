"""Expected load of the busiest of several chips with a layer's experts.

A layer waits for its busiest chip, and few tokens spread unevenly even over equally likely experts.
Expected maxima are drawn, with their own seed, for few tokens, and approximated for many.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from emulator.arrays import Float32s, Float64s, Int64s

DRAWS: Final = 48  # assumed enough: the mean of so many maxima is off by about 1 %
_GRID: Final = np.unique(np.round(2 ** np.arange(0, 9.01, 0.5)).astype(np.int64))  # to 512 tokens
_SEED: Final = 20_260_521


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertMaxima:
    """Expected largest loads of `blocks` chips (or groups of chips) that share a layer's experts.

    `tokens` pick `experts_per_token` experts; `distinct` is the most experts hit in any block,
    `pairs` the most pairs: all [grid]. `exponent`: see `expert_maxima`.
    """

    blocks: int
    experts: int
    experts_per_token: int
    exponent: float
    most_held: int
    tokens: Int64s
    distinct: Float64s
    pairs: Float64s

    def of(self, tokens: float) -> tuple[float, float]:
        """Experts hit and pairs of the busiest block when a group has `tokens`."""
        if tokens <= 0:
            return 0.0, 0.0
        if tokens > self.tokens[-1]:
            return float(self.most_held), self._many_pairs(tokens)
        at = np.log2(max(tokens, 1.0))
        grid = np.log2(self.tokens)
        distinct = float(2 ** np.interp(at, grid, np.log2(self.distinct)))
        pairs = float(2 ** np.interp(at, grid, np.log2(self.pairs)))
        return min(distinct, pairs), pairs

    def _many_pairs(self, tokens: float) -> float:
        """Of even picks, mean and deviations of a sum of hypergeometric draws, which is nearly
        normal; of uneven ones, in proportion.
        """
        if self.exponent:
            return float(self.pairs[-1] * tokens / self.tokens[-1])
        share = self.most_held / self.experts
        picked = self.experts_per_token
        mean = tokens * picked * share
        left = (self.experts - picked) / max(1, self.experts - 1)
        deviation = np.sqrt(tokens * picked * share * (1 - share) * left)
        return float(mean + _largest_normal(self.blocks) * deviation)


@lru_cache(maxsize=64)
def expert_maxima(
    *, blocks: int, experts: int, experts_per_token: int, exponent: float = 0.0
) -> ExpertMaxima:
    """Maxima for experts in order, spread over `blocks` as evenly as whole experts can be.

    The expert of rank r has odds r^-exponent in each of a token's picks; ranks are by chance. With
    exponent 0, all sets of experts are equally likely.
    """
    block_of = np.repeat(np.arange(blocks), _held(blocks, experts))  # [experts]
    rng = np.random.default_rng([_SEED, blocks, experts, experts_per_token])
    odds = np.arange(1, experts + 1, dtype=np.float32) ** np.float32(-exponent)
    distinct, pairs = [], []
    for tokens in _GRID.tolist():
        hits, loads = _drawn(rng, tokens, block_of, experts_per_token, odds)
        distinct.append(hits)
        pairs.append(loads)
    return ExpertMaxima(
        blocks=blocks,
        experts=experts,
        experts_per_token=experts_per_token,
        exponent=exponent,
        most_held=int(_held(blocks, experts).max()),
        tokens=_GRID,
        distinct=np.array(distinct),
        pairs=np.array(pairs),
    )


def _held(blocks: int, experts: int) -> Int64s:
    held: Int64s = np.full(blocks, experts // blocks) + (np.arange(blocks) < experts % blocks)
    return held


def _drawn(
    rng: np.random.Generator, tokens: int, block_of: Int64s, picks: int, odds: Float32s
) -> tuple[float, float]:
    experts, blocks = len(block_of), int(block_of[-1]) + 1
    draws = max(4, min(DRAWS, DRAWS * 64 // tokens))  # many tokens vary little
    scores = rng.random((draws, tokens, experts), dtype=np.float32)
    if odds[-1] < 1:  # exponential waits, shorter for greater odds
        ranked = rng.permuted(np.broadcast_to(odds, (draws, experts)), axis=1)
        scores = -np.log1p(-scores) / ranked[:, None]
    picked = scores.argpartition(picks, axis=2)[:, :, :picks].reshape(draws, -1)
    flat = picked + experts * np.arange(draws)[:, None]
    load = np.bincount(flat.ravel(), minlength=draws * experts).reshape(draws, experts)
    starts = np.searchsorted(block_of, np.arange(blocks))
    hits = np.add.reduceat(load > 0, starts, axis=1, dtype=np.int64).max(axis=1)
    pairs = np.add.reduceat(load, starts, axis=1).max(axis=1)
    return float(hits.mean()), float(pairs.mean())


@lru_cache(maxsize=64)
def _largest_normal(count: int) -> float:
    """Expected largest of `count` standard normal draws."""
    rng = np.random.default_rng([_SEED, count])
    return float(rng.standard_normal((8_192, count)).max(axis=1).mean()) if count > 1 else 0.0
