"""The fields of `PhaseTerms` side by side, as the compiled kernels read them.

Every field but `ramp_ns` is a sum of what depends on a rank's tokens, on its rows of logits, and of
multiples of sums over its requests; a layer's experts are multiples of five numbers of a chip.
"""

from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.timing.product_rate import ProductRate
from emulator.timing.roofline import DMA, ENGINES, TENSOR
from emulator.ultraserver.step_terms import PhaseTerms

TENSOR_NS: Final = TENSOR  # the first fields are the engines', in their order
DMA_NS: Final = DMA
ENGINE_COUNT: Final = len(ENGINES)
RAMP_NS: Final = ENGINE_COUNT
CORE_NS: Final = RAMP_NS + 1
CORE_MOVING_NS: Final = RAMP_NS + 2
FILL_DRAIN_NS: Final = RAMP_NS + 3
DMA_START_NS: Final = RAMP_NS + 4
LAUNCH_NS: Final = RAMP_NS + 5
LINK_NS: Final = RAMP_NS + 6
LATENCY_NS: Final = RAMP_NS + 7
COLLECTIVES: Final = RAMP_NS + 8
FLOPS: Final = RAMP_NS + 9  # the first of the rates'
RATES: Final = len(ProductRate)
HBM_BYTES: Final = FLOPS + RATES
LINK_BYTES: Final = HBM_BYTES + 1
FIELDS: Final = LINK_BYTES + 1


def side_by_side(terms: PhaseTerms) -> Float64s:
    """-> [columns, rows, FIELDS]."""
    single = (
        terms.ramp_ns,
        terms.core_ns,
        terms.core_moving_ns,
        terms.fill_drain_ns,
        terms.dma_start_ns,
        terms.launch_ns,
        terms.link_ns,
        terms.latency_ns,
        terms.collectives,
    )
    own = (*terms.engine_ns, *single, *terms.flops, terms.hbm_bytes, terms.link_bytes)
    return np.ascontiguousarray(np.array(own).transpose(2, 1, 0))
