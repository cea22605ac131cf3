"""The figures of a chip that laws of kernels ask for."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.chip import ChipSpec
from emulator.timing.product_rate import ProductRate, flops_per_ns
from emulator.units import NS_PER_S

Constant = float | Float64s
"""A constant of a law: one for all kernels, or each kernel's own [kernels]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Silicon:
    """Peak rates per ns and sizes of one chip, or of each kernel's chip [kernels].

    Attributes:
        cores: units that compute tiles side by side: multiprocessors, NeuronCores.
        flops: of the matrix engines, in the format that the kernel multiplies in.
        exponentials: of the units that compute a softmax.
        hbm_bytes: streamed from HBM.
        near_bytes: size of the memory beside the engines, whose content outlives a kernel.
        link_bytes: to other chips of the same node, per direction.
    """

    cores: Constant
    flops: Constant
    exponentials: Constant
    hbm_bytes: Constant
    near_bytes: Constant
    link_bytes: Constant

    @classmethod
    def of(cls, chip: ChipSpec, rate: ProductRate, *, dtype: str = "bf16") -> Self:
        """`chip` with products at `rate`; plain ones are in `dtype`."""
        return cls(
            cores=chip.cores.value,
            flops=float(flops_per_ns(chip, dtype)[rate]),
            exponentials=chip.scalar_ops_per_s.value / NS_PER_S,
            hbm_bytes=chip.memory_bytes_per_s / NS_PER_S,
            near_bytes=chip.sbuf_bytes.value,
            link_bytes=chip.link_tray_bytes_per_s.value / NS_PER_S,
        )

    @classmethod
    def columns(cls, each: Iterable["Silicon"]) -> Self:
        """One entry for each kernel, in order."""
        chips = list(each)
        return cls(
            **{
                field.name: np.array([getattr(chip, field.name) for chip in chips], dtype=float)
                for field in fields(cls)
            }
        )
