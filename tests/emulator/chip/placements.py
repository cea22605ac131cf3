"""Placements that no balancer would choose: each must give the same text."""

import numpy as np

from emulator.specs.placement import EMPTY, ExpertPlacement


def shuffled_placement(
    *, layers: int, experts: int, chips: int, ep: int, slots: int, seed: int
) -> ExpertPlacement:
    """Every group holds every expert, some twice, in another order in each layer."""
    rng = np.random.default_rng(seed)
    held = np.empty((layers, chips // ep, ep * slots), dtype=np.int64)
    for group in held.reshape(-1, ep * slots):  # views: one group in one layer each
        extra = rng.integers(EMPTY, experts, len(group) - experts)
        group[:] = rng.permutation(np.concatenate([np.arange(experts), extra]))
    return ExpertPlacement(
        experts=experts, ep=ep, expert_of_slot=held.reshape(layers, chips, slots)
    )
