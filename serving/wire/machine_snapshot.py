"""A machine's state, telemetry, power and chips' meters at one moment; see hardware.proto.

Times are emulated. Shares, rates and watts are means over the last `window_s`, up to the snapshot:
an idle engine falls to idle there.
"""

from typing import Final

from msgspec import field

from emulator.ultraserver.ceilings import Ceilings
from serving.wire.machine_state import Count, MachineState, Plain
from serving.wire.power_report import MachinePower
from serving.wire.telemetry import Telemetry

WINDOW_S: Final = 5.0
"""Emulated seconds of the window: neuron-monitor's own period."""


class ChipMeters(Plain, frozen=True, kw_only=True):
    """One chip's work since the engine's start, and in the last window.

    Attributes:
        busy_s: like all counts and shares of work, of serving alone: a training job's work is not
            metered, except watts and joules.
        figures: the ledger's others; a new one of its schema is here.
        joules: idle and leased time included.
        watts: of a chip that trains, as its job reports. A lost chip draws none.
        link_utilization: of all tiers together; 0 for a chip without links.
    """

    chip: Count
    engine_busy_s: dict[str, float]
    busy_s: float
    flops: float
    hbm_bytes: float
    link_bytes: float
    joules: float
    ecc_corrected: Count
    ecc_uncorrected: Count
    watts: float
    utilization: float
    engine_utilization: dict[str, float]
    link_utilization: float
    hbm_utilization: float
    flops_per_s: float
    figures: dict[str, float] = field(default_factory=dict)

    def total(self, name: str) -> float:
        """A figure by name, of `figures` or an attribute."""
        value: float = self.figures[name] if name in self.figures else getattr(self, name)
        return value


class StepDurations(Plain, frozen=True, kw_only=True):
    """Durations of the last `steps` steps, each one that occurred (nearest rank).

    `p0_s` is the shortest, `p100_s` the longest; all are None before the first step.
    """

    steps: Count
    p0_s: float | None = None
    p1_s: float | None = None
    p25_s: float | None = None
    p50_s: float | None = None
    p75_s: float | None = None
    p99_s: float | None = None
    p100_s: float | None = None


class MachineSnapshot(Plain, frozen=True, kw_only=True):
    """Everything at one moment. `window_s`: shorter after the start, longer after a long step."""

    emulated_s: float
    window_s: float
    state: MachineState
    telemetry: Telemetry
    power: MachinePower
    meters: tuple[ChipMeters, ...]
    parts_s: dict[str, float]
    steps_by_phase: dict[str, Count]
    step_times: StepDurations
    device_times: StepDurations
    faults_by_kind: dict[str, Count]
    faults_open: Count
    ceilings: Ceilings
    link_capacity_bytes_per_s: tuple[float, ...]
    neuroncores_per_chip: Count


class ExpertChoices(Plain, frozen=True, kw_only=True):
    """How often the timed model's routers chose each expert, in the balancing window.

    `tokens` are [layers x experts], layer 0 first; empty for a model without experts.
    """

    layers: Count
    experts: Count
    tokens: tuple[Count, ...]
    imbalance: float | None
