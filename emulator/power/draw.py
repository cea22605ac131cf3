"""The watts that a chip draws while its engines are busy some share of the time.

Between an idle floor and the chip's budget, in proportion to activity: a weighted sum of engines'
busy shares. It stops at one: a chip busy everywhere draws its budget and no more. That a real chip
slows down at that point is not modelled.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.specs.chip import ChipSpec

Float64s = NDArray[np.float64]

# Each engine's share of the watts between floor and budget when it alone runs at full rate. All are
# assumed: nobody has published a power curve. Their reasons, for the 800 W of Trainium3:
ACTIVITY_WEIGHTS: Final[Mapping[str, float]] = {
    # 560 W: 629 BF16 TFLOPS x 0.9 pJ/FLOP; prefill then draws most of the budget, as on GPUs,
    # where the prompt phase sets the peak (POLCA, arXiv 2308.12908).
    "tensor": 0.70,
    # 240 W: 4.9 TB/s x 8 bit x about 6 pJ/bit, HBM and the way to SBUF; decode then draws a little
    # under half of the budget (an H200 draws 137-300 of 700 W, arXiv 2605.11999).
    "dma": 0.30,
    # 80 W each: FP32 arithmetic and SBUF traffic of 8 cores.
    "vector": 0.10,
    "scalar": 0.10,
    # 40 W: the links' lanes are always on, and so in the floor; this is for moving data.
    "collectives": 0.05,
}


def activity(busy_share: Mapping[str, Float64s]) -> Float64s:
    """Sums engines' busy shares, each [chips] in [0, 1], to one activity [chips] in [0, 1].

    Raises ValueError when an engine is missing or unknown.
    """
    if busy_share.keys() != ACTIVITY_WEIGHTS.keys():
        raise ValueError(f"engines are {sorted(ACTIVITY_WEIGHTS)}, not {sorted(busy_share)}")
    weighted = np.array([weight * busy_share[name] for name, weight in ACTIVITY_WEIGHTS.items()])
    capped: Float64s = np.minimum(weighted.sum(axis=0), 1.0)
    return capped


def chip_watts(chip: ChipSpec, busy_share: Mapping[str, Float64s]) -> Float64s:
    """Average watts of each chip, [chips], from its engines' busy shares."""
    idle = chip.idle_watts.value
    return idle + (chip.budget_watts.value - idle) * activity(busy_share)
