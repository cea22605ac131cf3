"""Steps of an engine: count by phase, time by part, last durations."""

from typing import Final

import numpy as np

from emulator.specs.batch import StepBatch
from emulator.ultraserver.step_cost import StepCost
from emulator.units import NS_PER_S
from loadgen.measures.percentile import percentile
from serving.engine.step_batch import prefill_and_decode_tokens
from serving.wire.machine_snapshot import StepDurations
from serving.wire.step_record import StepPhase, phase_of

KEPT: Final = 1_024
"""Durations that are kept: a second or more of the fastest decode, and 16 kB."""


class StepHistory:
    """Counts steps since the engine's start."""

    def __init__(self) -> None:
        self.by_phase: dict[str, int] = {str(phase): 0 for phase in StepPhase}
        self._parts_ns: dict[str, float] = {}
        self._total_ns = np.zeros(KEPT, dtype=np.int64)
        self._device_ns = np.zeros(KEPT, dtype=np.int64)
        self._steps = 0

    def add(self, cost: StepCost, batch: StepBatch, *, begin_ns: int, end_ns: int) -> None:
        """Count a step; its end minus its begin includes pauses."""
        prompts, decodes = (int(tokens.sum()) for tokens in prefill_and_decode_tokens(batch))
        self.by_phase[phase_of(prompts, prompts + decodes)] += 1
        for name, part_ns in cost.parts_ns.items():
            self._parts_ns[name] = self._parts_ns.get(name, 0.0) + part_ns
        place = self._steps % KEPT
        self._total_ns[place] = end_ns - begin_ns
        self._device_ns[place] = cost.duration_ns
        self._steps += 1

    @property
    def parts_s(self) -> dict[str, float]:
        """Time of all steps by named part."""
        return {name: part_ns / NS_PER_S for name, part_ns in self._parts_ns.items()}

    @property
    def total_times(self) -> StepDurations:
        """Durations of the last steps, from begin to end."""
        return step_times(self._total_ns[: self._steps])

    @property
    def device_times(self) -> StepDurations:
        """Durations of the chips' work in them."""
        return step_times(self._device_ns[: self._steps])


def step_times(durations_ns: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> StepDurations:
    """Percentiles of durations, int64[steps]."""
    if not len(durations_ns):
        return StepDurations(steps=0)
    at = {f"p{q}_s": percentile(durations_ns, q) / NS_PER_S for q in (0, 1, 25, 50, 75, 99, 100)}
    return StepDurations(steps=len(durations_ns), **at)
