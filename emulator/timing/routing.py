"""Expectations of a distribution on a placement: pairs, experts hit, tokens sent.

Exact for tokens that pick independently. An expert's slots in a group share its pairs evenly.
"""

from functools import lru_cache

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.expert_sets import chance_all_missed


class ExpectedRouting:
    """Expected values of one distribution on one placement.

    Layers with the same odds and slots are computed once: arrays are [kinds, ...], and
    `kind_of_layer` is [layers]. Tokens are those of a chip's group, float64[chips]. Raises
    ValueError for different layers or experts.
    """

    def __init__(self, distribution: ExpertDistribution, placement: ExpertPlacement) -> None:
        shape = (placement.layers, placement.experts)
        if distribution.odds.shape != shape:
            raise ValueError(f"a distribution over {distribution.odds.shape} on {shape}")
        slots = placement.expert_of_slot
        first, self.kind_of_layer = _kinds(distribution.odds, slots)
        kinds = ExpertPlacement(
            experts=placement.experts, ep=placement.ep, expert_of_slot=slots[first]
        )
        share = _slot_shares(kinds)  # [kinds, chips, slots]
        chance = distribution.probability[first]  # [kinds, experts]
        held = np.maximum(kinds.expert_of_slot, 0)
        kind = np.arange(len(first))[:, None, None]
        # That a token's pair goes to a slot.
        # That a token's pair goes to a slot.
        self.slot_chance: Float64s = chance[kind, held] * share  # [kinds, chips, slots]
        self.pairs_per_token: Float64s = self.slot_chance.sum(axis=2)  # [kinds, chips]
        # That a token of its group needs a chip at all, [kinds, chips].
        self.chance_needed: Float64s = np.array(
            [
                _chance_needed(
                    distribution.odds[layer].tobytes(),
                    distribution.experts_per_token,
                    slots[layer].tobytes(),
                    slots.shape[1],
                    placement.ep,
                )
                for layer in first.tolist()
            ]
        ).reshape(len(first), placement.chips)

    def pairs(self, group_tokens: Float64s) -> Float64s:
        """(token, expert) pairs that each chip computes: [chips] -> [kinds, chips]."""
        return self.pairs_per_token * group_tokens

    def distinct(self, group_tokens: Float64s) -> Float64s:
        """Experts of each chip that at least one token picks: [chips] -> [kinds, chips]."""
        missed = (1 - self.slot_chance) ** group_tokens[:, None]  # [kinds, chips, slots]
        hit: Float64s = (1 - missed).sum(axis=2)
        return hit


def _kinds(odds: Float64s, slots: Int64s) -> tuple[Int64s, Int64s]:
    """The first layer of each kind [kinds], in order, and the kind of each layer [layers]."""
    first: list[int] = []
    kind_of: dict[bytes, int] = {}
    kinds: list[int] = []
    for layer in range(len(odds)):
        key = odds[layer].tobytes() + slots[layer].tobytes()
        if key not in kind_of:
            kind_of[key] = len(first)
            first.append(layer)
        kinds.append(kind_of[key])
    return np.array(first, dtype=np.int64), np.array(kinds, dtype=np.int64)


def _slot_shares(placement: ExpertPlacement) -> Float64s:
    """Each slot's part of its expert's pairs: [kinds, chips, slots]; EMPTY has 0."""
    copies = placement.copies()  # [groups, kinds, experts]
    slots = placement.expert_of_slot
    group = np.arange(placement.chips)[None, :, None] // placement.ep
    kind = np.arange(placement.layers)[:, None, None]
    return np.where(slots == EMPTY, 0.0, 1 / np.maximum(copies[group, kind, slots], 1))


@lru_cache(maxsize=512)
def _chance_needed(
    odds_bytes: bytes, picks: int, slots_bytes: bytes, chips: int, ep: int
) -> Float64s:
    """Probability that a token of its group needs each chip, in one layer: [chips].

    Cached by the bytes of odds and slots: slow, and a move of experts changes one layer of many.
    """
    odds = np.frombuffer(odds_bytes, dtype=np.float64)  # [experts]
    slots = np.frombuffer(slots_bytes, dtype=np.int64).reshape(1, chips, -1)
    layer = ExpertPlacement(experts=len(odds), ep=ep, expert_of_slot=slots)
    share = _slot_shares(layer)[0]  # [chips, slots]
    kept = np.ones((chips, len(odds)))  # of each expert's pairs, what does not go to each chip
    chip, slot = np.nonzero(slots[0] != EMPTY)
    np.subtract.at(kept, (chip, slots[0, chip, slot]), share[chip, slot])
    needed: Float64s = 1 - chance_all_missed(odds[None], picks, np.clip(kept, 0.0, 1.0))
    return needed
