"""Work of one update: clipping by the gradients' norm, and AdamW (arXiv 1711.05101) in FP32."""

from typing import Final

from emulator.arrays import Float64s
from emulator.timing.work import EngineWork

NORM_FLOPS: Final = 2  # square and sum, of each gradient
ADAMW_FLOPS: Final = 14
"""Per parameter: the gradient times clipping; first moment, two products and a sum; second moment,
three products and a sum; both corrections; the sum with epsilon; weight decay's product and sum;
the step's product."""
ADAMW_SCALAR_OPS: Final = 2  # a square root and a reciprocal
NORM_BYTES: Final = 4  # the gradient is read
UPDATE_BYTES: Final = 4 + 2 * (4 + 4 + 4)
"""The gradient is read again; master weight and both moments are read and written."""


def optimizer_work(parameters: Float64s, *, weight_bytes: Float64s) -> EngineWork:
    """Work of a chip that updates `parameters` and rewrites their `weight_bytes`: fields [...]."""
    return EngineWork.of(
        vector_flops=(NORM_FLOPS + ADAMW_FLOPS) * parameters,
        scalar_ops=ADAMW_SCALAR_OPS * parameters,
        hbm_bytes=(NORM_BYTES + UPDATE_BYTES) * parameters + weight_bytes,
    )
