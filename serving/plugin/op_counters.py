"""vLLM's families of estimated work per GPU, with what a chip of the partition really did.

vLLM estimates by its own formulas, for the weights that make tokens, and only when it is asked to.
The emulator counts the timed model's work on each chip; shown is the mean chip, spares left out.
HBM traffic is not counted by direction, so all of it stands under bytes that are read: vLLM's own
formula for bandwidth adds the two, and its answer is right.
"""

from typing import Any

from vllm.v1.metrics.perf import PerfMetricsProm, PerfStats

from serving.wire.hardware import HardwareReport


class OpCounters(PerfMetricsProm):
    """Takes the place of vLLM's; counts move when somebody looks at the hardware."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._shown: dict[str, float] = {"flops": 0.0, "bytes": 0.0}

    def observe(self, perf_stats: PerfStats, engine_idx: int = 0) -> None:
        """Leave vLLM's own estimate out."""

    def take(self, report: HardwareReport) -> None:
        """Count up to a look."""
        chips = report.state.partition.chips
        totals = {
            "flops": sum(meters.flops for meters in report.meters) / chips,
            "bytes": sum(meters.hbm_bytes for meters in report.meters) / chips,
        }
        for name, counters in (("flops", self.counter_flops), ("bytes", self.counter_read_bytes)):
            for counter in counters.values():
                counter.inc(max(0.0, totals[name] - self._shown[name]))
            self._shown[name] = max(totals[name], self._shown[name])
