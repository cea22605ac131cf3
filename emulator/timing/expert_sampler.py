"""Draws the experts that tokens pick, for runs in which nothing computes a router.

A draw depends on the seed, the layer and the token's index alone: not on the batch around it, and
not on what was drawn before. It follows the distribution that the expected values are made of,
expert by expert: given how many picks are left, the next expert is taken with its exact chance.
(Perturbing log-odds with Gumbel noise would be another distribution, whose chances have no closed
form.)
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.expert_sets import Float64s

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]

# SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


class ExpertSampler:
    """Samples one distribution with one seed."""

    def __init__(self, distribution: ExpertDistribution, *, seed: int) -> None:
        self._k = distribution.experts_per_token
        self._seed = seed
        # [layers, experts, picks left]: the chance that an expert is the next one taken
        self._take = np.array([_take_chances(odds, self._k) for odds in distribution.odds])

    def draw(self, layer: int, token: Int64s) -> Int64s:
        """The experts of the tokens with these indices: [tokens] -> [tokens, k], ascending."""
        take = self._take[layer]  # [experts, k + 1]
        stream = _mixed(_advanced(_seeded(self._seed), layer) + token.astype(np.uint64))
        left = np.full(len(token), self._k)
        chosen = np.empty((len(token), self._k), dtype=np.int64)
        rows = np.arange(len(token))
        for expert in range(len(take)):
            taken = _uniform(stream, expert) < take[expert, left]
            chosen[rows[taken], self._k - left[taken]] = expert
            left -= taken
        assert not left.any(), "a token that picks too few experts"
        return chosen


def _take_chances(odds: Float64s, k: int) -> Float64s:
    """[experts] -> [experts, k + 1]: that each is taken when so many picks are left from it on."""
    scaled = odds * (k / odds.sum())
    from_here = np.zeros(k + 1)  # weight of the sets of each size among this expert and later ones
    from_here[0] = 1.0
    chances = np.zeros((len(odds), k + 1))
    for expert in range(len(odds) - 1, -1, -1):
        with_it = scaled[expert] * from_here[:-1]
        from_here[1:] += with_it
        # With only as many experts as picks left, this is x / (x + 0): one, without rounding.
        np.divide(with_it, from_here[1:], out=chances[expert, 1:], where=from_here[1:] > 0)
    return chances


def _seeded(seed: int) -> UInt64s:
    return np.array([seed % 2**64], dtype=np.uint64)


def _advanced(stream: UInt64s, position: int) -> UInt64s:
    """The stream's number at a position, from 0 on; arrays of integers wrap around silently."""
    return _mixed(stream + np.array([(position + 1) * int(_STEP) % 2**64], dtype=np.uint64))


def _mixed(bits: UInt64s) -> UInt64s:
    """SplitMix64's finaliser."""
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))


def _uniform(stream: UInt64s, position: int) -> Float64s:
    """One number in [0, 1) of each stream at `position`: 53 bits."""
    numbers: Float64s = (_advanced(stream, position) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers
