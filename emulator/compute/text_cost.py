"""What computing a catalog model's own text costs a host: memory, time to read, CPU a token.

Memory is `host_memory`'s rule for a checkpoint that chips map. Rates were measured on one host
(`tests.benchmarks`, text_cost), and are extrapolated to other models and hosts.
"""

from typing import Final

from emulator.compute.host_memory import mapped_need
from emulator.specs.figure import Figure, NamedFigures
from emulator.specs.model import ModelSpec

WEIGHTS_PER_CPU_S: Final = Figure(
    3.1e9,
    "weights/s",
    "measured: one request of 3 billion BF16 parameters with experts, one thread of a 2-core host",
)
DISK_BYTES_PER_S: Final = Figure(1.3e9, "bytes/s", "measured: sequential reads of that host's disk")
CHIPS: Final = (1, 4, 144)
"""Of a host, those that memory is given for: one, a tray, the largest UltraServer."""

_EXTRAPOLATED = "assumed: extrapolated from {} {} ({})"


def text_figures(model: ModelSpec) -> NamedFigures:
    """Host memory by number of chips, without KV; seconds to read it; CPU seconds a token alone."""
    memory = (
        (
            f"host_memory_bytes_{chips}_chip{'s' * (chips > 1)}",
            Figure(
                mapped_need(model, chips).total_bytes,
                "bytes",
                "arithmetic: to compute its text, stored weights once, and each chip's process",
            ),
        )
        for chips in CHIPS
    )
    return (
        *memory,
        ("host_read_s", _at(model.weight_bytes, DISK_BYTES_PER_S)),
        ("host_token_cpu_s", _at(model.active_parameters, WEIGHTS_PER_CPU_S)),
    )


def _at(amount: float, rate: Figure) -> Figure:
    source = _EXTRAPOLATED.format(f"{rate.value:.2g}", rate.unit, rate.source)
    return Figure(amount / rate.value, "s", source)
