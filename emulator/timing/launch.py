"""Cost of starting work on a chip: kernels in sequence, or one compiled graph a step."""

from typing import Final

from emulator.specs.chip import ChipSpec

_BY_KERNEL: Final = ("NVIDIA", "AMD")  # the others run a graph that was compiled as a whole


def kernel_launch_ns(chip: ChipSpec) -> float:
    """Gap between two dependent kernels; 0 inside a compiled graph.

    A kernel per dependent product, with the work between fused: the fewest possible launches.
    """
    return chip.launch_ns.value if chip.maker in _BY_KERNEL else 0.0


def step_launch_ns(chip: ChipSpec) -> float:
    """Once per step: to start a compiled graph, or the first kernel."""
    return float(chip.launch_ns.value)
