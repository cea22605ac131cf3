"""Work: the demand of a piece of a step on each resource of a chip, before any rate.

HBM traffic: weights once per step and using chip; a request's cached keys and values once per step
and layer; new keys and values, written; embedding rows; logits, written and read for sampling; and
activations that do not fit beside the engines (see activation_traffic; a chunk of 8,192 tokens x
7,168 x 2 bytes is 117 MB of Trainium3's 268).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np

from emulator.arrays import Float64s
from emulator.timing.product_rate import ProductRate

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
PERMUTE_OPS: Final = 1  # per element of a row that is gathered into its expert's order
PICK_OPS: Final = 1  # per picked expert: its index is written beside its weight
SAMPLE_OPS: Final = 1  # per logit: one pass finds the index of the token that is drawn
LOGIT_BYTES: Final = 4  # FP32


Products = Mapping[ProductRate, Float64s | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWork:
    """Work by resource; all of one shape, or broadcast to it.

    `flops` [rates, ...]: the products' own, by rate; `issued_flops`: with partial tiles and rows
    counted as full. `lost_bytes`: the time lost by small transfers, in bytes.
    """

    flops: Float64s
    issued_flops: Float64s
    vector_flops: Float64s
    scalar_ops: Float64s
    gpsimd_ops: Float64s
    hbm_bytes: Float64s
    lost_bytes: Float64s

    @classmethod
    def of(
        cls,
        *,
        flops: Products | None = None,
        issued_flops: Products | None = None,
        vector_flops: Float64s | float = 0.0,
        scalar_ops: Float64s | float = 0.0,
        gpsimd_ops: Float64s | float = 0.0,
        hbm_bytes: Float64s | float = 0.0,
        lost_bytes: Float64s | float = 0.0,
    ) -> Self:
        """Work with zeros for omitted resources; by default products are issued as they are."""
        done = flops or {}
        return cls(
            flops=_by_rate(done),
            issued_flops=_by_rate(done if issued_flops is None else issued_flops),
            vector_flops=np.asarray(vector_flops, dtype=np.float64),
            scalar_ops=np.asarray(scalar_ops, dtype=np.float64),
            gpsimd_ops=np.asarray(gpsimd_ops, dtype=np.float64),
            hbm_bytes=np.asarray(hbm_bytes, dtype=np.float64),
            lost_bytes=np.asarray(lost_bytes, dtype=np.float64),
        )

    def __add__(self, other: "EngineWork") -> "EngineWork":
        return EngineWork(
            **{
                field.name: getattr(self, field.name) + getattr(other, field.name)
                for field in fields(self)
            }
        )


def _by_rate(products: Products) -> Float64s:
    """[rates, ...], at least [rates, 1]; zeros at other rates."""
    each = [np.atleast_1d(np.asarray(one, dtype=np.float64)) for one in products.values()]
    shape = max((one.shape for one in each), key=lambda shape: (len(shape), shape), default=(1,))
    flops = np.zeros((len(ProductRate), *shape))
    for rate, one in zip(products, each, strict=True):
        flops[rate] += one
    return flops


def is_busy(amount: Float64s) -> Float64s:
    """One where there is any work, zero elsewhere: for bytes read once."""
    return (amount > 0).astype(np.float64)
