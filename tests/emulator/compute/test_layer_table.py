"""A kernel has from a table the layers that it was made of, whatever is written into them since."""

from typing import Any

import numpy as np
import pytest
from numba import njit

from emulator.compute.attention_kernel import HeadWeights, Scoring
from emulator.compute.feed_forward_kernel import ExpertChoice, Experts, Gate, RouterArrays
from emulator.compute.layer_table import ExpertLayer, LayerTable, layer_of, table_of

pytestmark = pytest.mark.long


@njit
def read(table: LayerTable, index: int) -> Any:
    return layer_of(table, index)


def random_layer(rng: np.random.Generator) -> ExpertLayer:
    def some(*shape: int) -> Any:
        return rng.random(shape, dtype=np.float32)

    return ExpertLayer(
        HeadWeights(some(6), 0.5, some(2, 6, 8), some(2, 8), some(3, 2), some(2, 4, 6)),
        Scoring(0.25, 7, some(4)),
        some(6),
        some(6),
        RouterArrays(some(1, 6, 5), some(5), some(0)),
        ExpertChoice(True, 2, False, 4, 3, 1.5, 1e-20),
        Experts(some(5, 6, 8), some(5, 4, 6), some(5, 14)),
        Gate(1.702, 1.0, 7.0),
    )


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        return all(map(same, found, expected))
    return bool(np.array_equal(found, expected))


def test_a_layer_comes_out_as_it_went_in() -> None:
    rng = np.random.default_rng(0)
    layers = [random_layer(rng), random_layer(rng)]
    table = table_of(layers)

    layers[1].experts.down[3] = 7.0

    for index, layer in enumerate(layers):
        assert same(read(table, index), layer)
