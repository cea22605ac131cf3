"""Keeps a placement that a new one would hardly improve: moves cost time and bytes."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.placement import EMPTY, ExpertPlacement
from serving.policy.placement.chip_loads import Load, chip_loads, loads_by_group

Bools = NDArray[np.bool_]

ROUNDING: Final = 1e-9
"""A smaller relative gain may be rounding of sums."""


def keep_settled(
    load: Load,
    previous: ExpertPlacement,
    balanced: ExpertPlacement,
    *,
    usable: Bools | None = None,
    least_gain: float = ROUNDING,
) -> ExpertPlacement:
    """`balanced` in the layers of groups where it gains enough, `previous` elsewhere.

    Enough: the busiest chip's load falls by more than the share `least_gain`, or `previous` misses
    an expert or has one on an unusable chip. Raises ValueError for shapes that do not match.
    """
    if previous.expert_of_slot.shape != balanced.expert_of_slot.shape:
        raise ValueError("two placements of the same layers, chips and slots are compared")
    groups = previous.chips // previous.ep
    layers = previous.layers
    loads = loads_by_group(load, groups)
    complete: Bools = np.all(previous.copies() > 0, axis=2)  # [groups, layers]
    if usable is not None:
        astray: Bools = previous.expert_of_slot != EMPTY  # [layers, chips, slots]
        astray[:, usable] = False
        complete &= ~astray.reshape(layers, groups, -1).any(axis=2).T
    known = np.where(complete[..., None], loads, 0.0)  # an expert without a slot has no chip load
    before, after = (
        chip_loads(known, placement).reshape(layers, groups, -1).max(axis=2)
        for placement in (previous, balanced)
    )
    stays = complete.T & (after >= before * (1 - least_gain))  # [layers, groups]
    stays_by_chip = np.repeat(stays, previous.ep, axis=1)[..., None]  # [layers, chips, 1]
    slots = np.where(stays_by_chip, previous.expert_of_slot, balanced.expert_of_slot)
    return ExpertPlacement(experts=previous.experts, ep=previous.ep, expert_of_slot=slots)
