"""vLLM's families of estimated work per GPU, filled with the emulator's counts per chip.

vLLM's own estimate is for the weights that make tokens, and optional. Here it is the timed model's
work on the mean chip, spares left out. HBM traffic is not counted by direction: all of it is shown
as bytes read, and vLLM's formula for bandwidth, which adds both, stays right.
"""

from typing import Any

from vllm.v1.metrics.perf import PerfMetricsProm, PerfStats

from serving.wire.machine_snapshot import MachineSnapshot


class OpCounters(PerfMetricsProm):
    """Replaces vLLM's; counters move when a snapshot is taken."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._shown: dict[str, float] = {"flops": 0.0, "bytes": 0.0}

    def observe(self, perf_stats: PerfStats, engine_idx: int = 0) -> None:
        """Leave vLLM's own estimate out."""

    def take(self, snapshot: MachineSnapshot) -> None:
        """Count up to a look."""
        chips = snapshot.state.partition.chips
        totals = {
            "flops": sum(meters.flops for meters in snapshot.meters) / chips,
            "bytes": sum(meters.hbm_bytes for meters in snapshot.meters) / chips,
        }
        for name, counters in (("flops", self.counter_flops), ("bytes", self.counter_read_bytes)):
            for counter in counters.values():
                counter.inc(max(0.0, totals[name] - self._shown[name]))
            self._shown[name] = max(totals[name], self._shown[name])
