"""Expert routing that is not computed: exact expectations under uniform, independent routing.

The stated distribution: every token picks its experts without replacement, each set equally likely,
tokens independent of each other. Experts lie in equal shares on chips. Real routers are not
uniform; a skewed one makes its fullest chip slower than this says.
"""

from math import comb
from typing import Final

from emulator.specs.model import ModelSpec

ROUTING: Final = "uniform (expected value)"


def expected_assignments_per_chip(model: ModelSpec, tokens: float, ep: int) -> float:
    """(token, expert) pairs that one of `ep` chips computes when `tokens` of all ranks arrive."""
    return tokens * model.experts_per_token / ep


def expected_distinct_experts_per_chip(model: ModelSpec, tokens: float, ep: int) -> float:
    """Experts of one chip that at least one of `tokens` picks: these weights are read."""
    missed = 1 - model.experts_per_token / model.experts
    return model.experts / ep * float(1 - missed**tokens)


def chance_token_needs_chip(model: ModelSpec, ep: int) -> float:
    """Probability that a token picks at least one expert of a given chip.

    One minus the share of expert sets that avoid the chip: C(E - E/ep, k) / C(E, k).
    """
    elsewhere = model.experts - model.experts // ep
    avoiding = comb(elsewhere, model.experts_per_token)
    return 1 - avoiding / comb(model.experts, model.experts_per_token)
