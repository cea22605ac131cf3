"""Watts of a chip from its engines' busy shares.

Idle watts, plus rate x busy share x joules per operation of each engine. A chip over its budget
takes longer, by `throttle_factor`, at the same energy per operation (assumed: a lower voltage would
save some, so the factor is an upper bound). Averages over a step hide peaks inside it.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.errors import ConfigError
from emulator.specs.chip import ChipSpec
from emulator.specs.work_energy import PICO, work_energy_of
from emulator.units import BITS_PER_BYTE

FORMATS: Final = ("fp32", "bf16", "fp8", "fp4")
_TENSOR: Final = frozenset({"tensor", *(f"tensor_{dtype}" for dtype in FORMATS)})
_OTHERS: Final = frozenset({"vector", "scalar", "dma", "collectives"})
_OPTIONAL: Final = frozenset({"gpsimd"})


def full_rate_watts(chip: ChipSpec) -> dict[str, float]:
    """Watts above idle of each engine alone at its full rate, by name.

    `tensor` counts as the chip's hungriest format of 16 bits or fewer, `collectives` as all of the
    chip's scale-up lanes, one way.
    """
    energy = work_energy_of(chip)
    formats = {
        f"tensor_{dtype}": chip.tensor_flops_per_s(dtype) * energy.tensor_joules(dtype)
        for dtype in FORMATS
    }
    links = (
        chip.link_tray_bytes_per_s,
        chip.link_backplane_bytes_per_s,
        chip.link_cross_rack_bytes_per_s,
    )
    link_bits_per_s = BITS_PER_BYTE * sum(link.value for link in links if link is not None)
    gpsimd_ops_per_s = 0.0 if chip.gpsimd_ops_per_s is None else chip.gpsimd_ops_per_s.value
    return {
        "tensor": max(formats[f"tensor_{dtype}"] for dtype in FORMATS if dtype != "fp32"),
        **formats,
        "vector": chip.vector_flops_per_s.value * energy.vector.value * PICO,
        "scalar": chip.scalar_ops_per_s.value * energy.scalar.value * PICO,
        "gpsimd": gpsimd_ops_per_s * energy.gpsimd.value * PICO,
        "dma": BITS_PER_BYTE * chip.memory_bytes_per_s * energy.hbm.value * PICO,
        "collectives": link_bits_per_s * energy.link.value * PICO,
    }


def wanted_watts(chip: ChipSpec, busy_share: Mapping[str, Float64s]) -> Float64s:
    """Watts of each chip without a budget, [chips], from engines' busy shares in [0, 1].

    Keys: `vector`, `scalar`, `dma`, `collectives`; `tensor`, or `tensor_bf16` and so on for a known
    format; optionally `gpsimd`. Raises ValueError for a missing or an unknown one.
    """
    engines = busy_share.keys()
    unknown = engines - _TENSOR - _OTHERS - _OPTIONAL
    if unknown or not engines & _TENSOR or not engines >= _OTHERS:
        known = sorted(_TENSOR | _OTHERS | _OPTIONAL)
        raise ValueError(f"engines are {known}, not {sorted(engines)}")
    watts_of = full_rate_watts(chip)
    dynamic = (watts_of[engine] * share for engine, share in busy_share.items())
    return np.asarray(chip.idle_watts.value + sum(dynamic), dtype=np.float64)


def throttle_factor(
    chip: ChipSpec, wanted: Float64s, *, cap_watts: float | None = None
) -> Float64s:
    """Slowdown of each chip, at least 1: [chips] wanted watts -> [chips].

    Limits and errors are those of `limit_watts`.
    """
    idle = chip.idle_watts.value
    cap = limit_watts(chip, cap_watts)
    factor: Float64s = np.maximum((wanted - idle) / (cap - idle), 1.0)
    return factor


def limit_watts(chip: ChipSpec, cap_watts: float | None) -> float:
    """What a chip may draw: its budget, or `cap_watts` where its rack allows less.

    See `SystemPower.chip_cap_watts`. Raises ConfigError for a cap at which the chip cannot work.
    """
    idle, budget = chip.idle_watts.value, chip.budget_watts.value
    cap = budget if cap_watts is None else min(cap_watts, budget)
    if cap <= idle:
        raise ConfigError("cap_watts", cap, f"above {idle:g}, its idle watts")
    return cap
