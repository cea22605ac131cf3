"""Everything that is shown of a machine: chips' meters beside state, telemetry and power.

All times are emulated. Shares, rates and watts are means over the last `window_s`, which end when
the snapshot is taken: an engine that has nothing to do falls to idle there. Fields are named as
in `protos/ultraserve/v1/hardware.proto`.
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
    """What one chip has done since the engine's start, and in the last window.

    Attributes:
        engine_busy_s: by the names of the emulator's engines, `collectives` among them.
        busy_s: in steps, as long as its rank and the experts of its group needed in them. It and
            all counts and shares of work are of serving alone: a training job's work on lent chips
            is not metered, but for its watts and joules.
        flops: of matrix products; `hbm_bytes` were read and written, `link_bytes` sent.
        figures: the ledger's others, since the start, by name: a figure that is added to its schema
            is here.
        joules: idle time and the time in which it was lent out included; all chips' are the
            engine's.
        ecc_corrected: 0 by nature: no single bit error is modelled. `ecc_uncorrected` counts the
            HBM stacks that have failed, one event each.
        watts: mean of the window; of a chip that trains, what its job says. A lost chip draws
            none.
        utilization: share of the window in which it was busy; `engine_utilization` of each engine.
        link_utilization: bytes that it sent over what its links could have sent, all tiers
            together; 0 for one that has no link left. `hbm_utilization`: of what HBM can stream.
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
        """A figure by name, wherever it has its place."""
        value: float = self.figures[name] if name in self.figures else getattr(self, name)
        return value


class StepDurations(Plain, frozen=True, kw_only=True):
    """Durations of the last `steps` steps: each figure is one that occurred (nearest rank).

    `p0_s` is the shortest and `p100_s` the longest; all are None before the first step.
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
    """Everything of one moment.

    Attributes:
        emulated_s: now, also between two steps; joules and seconds below count up to it.
        window_s: what the window really was: shorter after the start, longer after a long step; 0
            before any time has passed, when its shares are 0.
        state: as StateReply, but for `faults`: the last ones.
        telemetry: as TelemetryReply.
        power: as PowerReply.
        meters: in the order of `state.chips`.
        parts_s: emulated time of steps by named part, since the start.
        steps_by_phase: prefill, mixed, decode; since the start.
        step_times: from a step's begin to its end, what held it up and lag included;
            `device_times` of the chips' work alone.
        faults_by_kind: since the start, every kind; `faults_open` of them have not been healed.
        ceilings: what each chip could do at most.
        link_capacity_bytes_per_s: of each chip, all tiers together, as cut lanes, pulled switch
            trays and lost chips leave it.
        neuroncores_per_chip: logical NeuronCores.
    """

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
    """How often the timed model's routers chose each expert, in the window that balancing looks at.

    Attributes:
        tokens: [layers x experts], those of layer 0 first; empty for a model without experts.
        imbalance: as in ExpertBalance.
    """

    layers: Count
    experts: Count
    tokens: tuple[Count, ...]
    imbalance: float | None
