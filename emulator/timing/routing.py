"""What a stated distribution makes of a placement: expected pairs, experts hit, and tokens sent.

Exact expectations for tokens that pick independently of each other. An expert that lies in several
slots of a group gets an even part of its pairs in each.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.expert_sets import Float64s, chance_all_missed

Int64s = NDArray[np.int64]

_CELLS_MAX: Final = 2_000_000  # of a table [layers, chips, experts] that is worked on at once


class ExpectedRouting:
    """Expected values of one distribution on one placement.

    Layers that are alike (the same odds, the same slots) are worked out once: arrays are [kinds,
    ...], and `layers_of_kind` says how many layers each kind stands for. The tokens that a chip's
    experts see are those of its expert-parallel group, given as float64[chips].

    Raises ValueError when distribution and placement are of different layers or experts.
    """

    def __init__(self, distribution: ExpertDistribution, placement: ExpertPlacement) -> None:
        shape = (placement.layers, placement.experts)
        if distribution.odds.shape != shape:
            raise ValueError(f"a distribution over {distribution.odds.shape} on {shape}")
        slots = placement.expert_of_slot
        first, self.layers_of_kind = _kinds(distribution.odds, slots)
        kinds = ExpertPlacement(
            experts=placement.experts, ep=placement.ep, expert_of_slot=slots[first]
        )
        share = _slot_shares(kinds)  # [kinds, chips, slots]
        chance = distribution.probability[first]  # [kinds, experts]
        held = np.maximum(kinds.expert_of_slot, 0)
        kind = np.arange(len(first))[:, None, None]
        # That a token's pair goes to a slot.
        self._slot_chance: Float64s = chance[kind, held] * share  # [kinds, chips, slots]
        self.pairs_per_token: Float64s = self._slot_chance.sum(axis=2)  # [kinds, chips]
        odds, k = distribution.odds[first], distribution.experts_per_token
        step = max(1, _CELLS_MAX // max(1, kinds.chips * kinds.experts))
        # That a token of its group needs a chip at all, [kinds, chips].
        self.chance_needed: Float64s = np.concatenate(
            [
                1 - chance_all_missed(odds[part, None], k, _kept(kinds, share, part))
                for part in (slice(i, i + step) for i in range(0, len(first), step))
            ]
            or [np.zeros((0, kinds.chips))]
        )

    def pairs(self, group_tokens: Float64s) -> Float64s:
        """(token, expert) pairs that each chip computes: [chips] -> [kinds, chips]."""
        return self.pairs_per_token * group_tokens

    def distinct(self, group_tokens: Float64s) -> Float64s:
        """Experts of each chip that at least one token picks: [chips] -> [kinds, chips]."""
        missed = (1 - self._slot_chance) ** group_tokens[:, None]  # [kinds, chips, slots]
        hit: Float64s = (1 - missed).sum(axis=2)
        return hit


def _kinds(odds: Float64s, slots: Int64s) -> tuple[Int64s, Int64s]:
    """The first layer of each kind, and how many layers are of it: both [kinds], in order."""
    first_of: dict[bytes, int] = {}
    count: dict[bytes, int] = {}
    for layer in range(len(odds)):
        key = odds[layer].tobytes() + slots[layer].tobytes()
        first_of.setdefault(key, layer)
        count[key] = count.get(key, 0) + 1
    return np.array(list(first_of.values()), dtype=np.int64), np.array(
        list(count.values()), dtype=np.int64
    )


def _slot_shares(placement: ExpertPlacement) -> Float64s:
    """Of its expert's pairs, the part that each slot gets: [kinds, chips, slots]; EMPTY has 0."""
    copies = placement.copies()  # [groups, kinds, experts]
    slots = placement.expert_of_slot
    group = np.arange(placement.chips)[None, :, None] // placement.ep
    kind = np.arange(placement.layers)[:, None, None]
    return np.where(slots == EMPTY, 0.0, 1 / np.maximum(copies[group, kind, slots], 1))


def _kept(placement: ExpertPlacement, share: Float64s, part: slice) -> Float64s:
    """Of each expert's pairs, the part that does not go to each chip: [part, chips, experts]."""
    slots = placement.expert_of_slot[part]
    kept = np.ones((len(slots), placement.chips, placement.experts))
    kind, chip, slot = np.nonzero(slots != EMPTY)
    np.subtract.at(kept, (kind, chip, slots[kind, chip, slot]), share[part][kind, chip, slot])
    return np.clip(kept, 0.0, 1.0)
