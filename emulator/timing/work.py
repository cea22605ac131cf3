"""Work: what a piece of a step asks of each resource of a chip, before any rate.

A multiply-accumulate is two flops. Nothing here is a time: rates belong to the roofline.

What is taken to move through HBM: weights once per step, by a chip that uses them; the cached keys
and values of a request once per step and layer; new keys and values, written; embedding rows;
logits, written. Activations stay in SBUF (assumed: a chunk of 8,192 tokens x 2,048 x 2 bytes is
34 MB of the chip's 268; wider models run shorter chunks).
"""

from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]

FLOPS_PER_MAC: Final = 2
NORM_FLOPS: Final = 4  # per element: square, sum, times 1/rms, times weight
ROPE_FLOPS: Final = 3  # per element: two products and a sum
SOFTMAX_FLOPS: Final = 4  # per score beside its exp: running maximum, subtract, sum, rescale
TOP_K_FLOPS: Final = 1  # per router score: one pass finds the largest eight (VectorE's max)
SWIGLU_FLOPS: Final = 2  # per element beside its sigmoid: gate x sigmoid(gate), x up
BIAS_FLOPS: Final = 1  # per element
RESIDUAL_FLOPS: Final = 1  # per element of the hidden row, after attention and after feed-forward
# Per activation that is turned into MXFP8: VectorE's quantize_mx takes 4 elements a cycle and
# partition (AWS Neuron SDK docs, trainium3_arch.rst), half of the 8 flops it does at its peak.
QUANTIZE_FLOPS: Final = 2
LOGIT_BYTES: Final = 4  # FP32


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work by the resource that does it; all of one shape, or broadcast to it.

    `tensor_flops` run at the rate of the model's dtype, `mx_flops` at the MXFP8 rate.
    """

    tensor_flops: Float64s
    mx_flops: Float64s
    vector_flops: Float64s
    scalar_ops: Float64s
    hbm_bytes: Float64s

    @classmethod
    def of(
        cls,
        *,
        tensor_flops: Float64s | float = 0.0,
        mx_flops: Float64s | float = 0.0,
        vector_flops: Float64s | float = 0.0,
        scalar_ops: Float64s | float = 0.0,
        hbm_bytes: Float64s | float = 0.0,
    ) -> Self:
        """Work with none of what is not given."""
        return cls(
            tensor_flops=np.asarray(tensor_flops, dtype=np.float64),
            mx_flops=np.asarray(mx_flops, dtype=np.float64),
            vector_flops=np.asarray(vector_flops, dtype=np.float64),
            scalar_ops=np.asarray(scalar_ops, dtype=np.float64),
            hbm_bytes=np.asarray(hbm_bytes, dtype=np.float64),
        )

    def __add__(self, other: "Work") -> "Work":
        return Work(
            **{
                field.name: getattr(self, field.name) + getattr(other, field.name)
                for field in fields(self)
            }
        )


def is_busy(amount: Float64s) -> Float64s:
    """One where there is any of it, zero elsewhere: what is read once, whatever the amount."""
    return (amount > 0).astype(np.float64)
