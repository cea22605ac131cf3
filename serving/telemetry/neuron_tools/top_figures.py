"""Figures of `ultraserve top`, of one snapshot; independent of the screen.

Shares, rates and watts are means over the snapshot's window. vCPUs and the processes' memory are
this machine's, in wall time; None where not visible.
"""

from dataclasses import dataclass
from typing import Final

from serving.telemetry.device_memory import added, chip_bytes, core_bytes
from serving.telemetry.neuron_tools.engine_snapshot import EngineSnapshot
from serving.telemetry.neuron_tools.host_sample import HostSample, runtime_vcpu_usage, vcpu_usage
from serving.telemetry.neuron_tools.neuron_names import neuron_names
from serving.telemetry.page.chip_page import phase_of_chip
from serving.wire.machine_snapshot import ChipMeters
from serving.wire.machine_state import (
    SERVING,
    ChipHealth,
    ChipState,
    LeaseState,
    RankState,
)
from serving.wire.power_report import TokensPerMegawatt

CATEGORY_WORDS: Final = {
    "tensors": "Tensors",
    "constants": "Constants",
    "model_code": "Model Code",
    "runtime_memory": "Runtime Memory",
    "model_shared_scratchpad": "Model Scratchpad",
}
"""Categories of device memory in neuron-top's words and order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopChip:
    """One chip. `doing`: lost or hung, else its phase, "spare" or "out". `cores`: memory by
    category of each logical core, by its number over all chips.
    """

    chip: int
    rack: int
    tray: int
    position: int
    rank: int | None
    doing: str
    slow: bool
    utilization: float
    flops_per_s: float
    hbm_used_bytes: int
    hbm_capacity_bytes: int
    watts: float
    link_utilization: float
    cores: dict[int, dict[str, int]]

    @property
    def works(self) -> bool:
        """Whether its meters count: it serves or drains."""
        return self.doing in (SERVING, "draining")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures:
    """This machine: percent of its vCPUs, and bytes; the server's are None if it is elsewhere."""

    user_percent: float
    system_percent: float
    memory_used_bytes: int
    memory_total_bytes: int
    server_user_percent: float | None
    server_system_percent: float | None
    server_memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFigures:
    """Means over the last `window_s` emulated seconds, longer than the other figures' window."""

    input_per_s: float
    output_per_s: float
    per_megawatt: tuple[TokensPerMegawatt, ...]
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopFigures:
    """All figures of one snapshot; `device_bytes` is by category, of all chips."""

    version: str
    system: str
    model: str
    core_version: str
    lnc: int
    cores_per_chip: int
    chips_per_tray: int
    emulated_s: float
    dilation: float
    lag_s: float
    window_s: float
    steps: int
    step_p50_s: float | None
    step_p99_s: float | None
    steps_by_phase: dict[str, int]
    chips: tuple[TopChip, ...]
    ranks: tuple[RankState, ...]
    leases: tuple[LeaseState, ...]
    faults_open: int
    asleep: tuple[str, ...]
    flops_ceiling_per_s: float
    chip_watts_ceiling: float
    tokens: TokenFigures | None
    requests_running: int
    requests_waiting: int
    kv_share: float | None
    chip_watts: float
    it_watts: float
    facility_watts: float
    pue: float
    device_bytes: dict[str, int]
    host: HostFigures | None

    @property
    def utilization(self) -> float:
        """Mean over the chips that work; 0 without any."""
        working = [chip.utilization for chip in self.chips if chip.works]
        return sum(working) / len(working) if working else 0.0

    @property
    def flops_per_s(self) -> float:
        """Of all chips."""
        return sum(chip.flops_per_s for chip in self.chips)

    @property
    def phases(self) -> dict[str, int]:
        """Number of chips by `doing`, in the order of the chips."""
        counts: dict[str, int] = {}
        for chip in self.chips:
            counts[chip.doing] = counts.get(chip.doing, 0) + 1
        return counts


def top_figures(look: EngineSnapshot, host: HostFigures | None) -> TopFigures:
    """The figures of a snapshot."""
    snapshot, description = look.snapshot, look.description
    telemetry, power, state = snapshot.telemetry, snapshot.power, snapshot.state
    chips = tuple(
        _chip(look, chip, meters) for chip, meters in zip(state.chips, snapshot.meters, strict=True)
    )
    names = neuron_names(description.chip.name)
    return TopFigures(
        version=description.ultraserve_version,
        system=state.system,
        model=state.model,
        core_version=names.logical_core_version(look.cores.lnc),
        lnc=look.cores.lnc,
        cores_per_chip=len(look.cores.cores),
        chips_per_tray=max((rack.chips_per_tray for rack in description.racks), default=1),
        emulated_s=snapshot.emulated_s,
        dilation=telemetry.dilation,
        lag_s=telemetry.lag_s,
        window_s=snapshot.window_s,
        steps=state.steps,
        step_p50_s=snapshot.step_times.p50_s,
        step_p99_s=snapshot.step_times.p99_s,
        steps_by_phase=dict(snapshot.steps_by_phase),
        chips=chips,
        ranks=state.ranks,
        leases=tuple(lease for lease in state.leases if lease.phase != SERVING),
        faults_open=snapshot.faults_open,
        asleep=state.sleep.asleep,
        flops_ceiling_per_s=snapshot.ceilings.flops_per_s,
        chip_watts_ceiling=power.chip_budget_watts,
        tokens=_tokens(look),
        requests_running=telemetry.requests_running,
        requests_waiting=telemetry.requests_waiting,
        kv_share=telemetry.kv_blocks_used / telemetry.kv_blocks if telemetry.kv_blocks else None,
        chip_watts=power.chip_watts,
        it_watts=power.it_watts,
        facility_watts=power.facility_watts,
        pue=power.pue,
        device_bytes=added(tuple(chip_bytes(chip) for chip in state.chips)),
        host=host,
    )


def _chip(look: EngineSnapshot, chip: ChipState, meters: ChipMeters) -> TopChip:
    held = core_bytes(chip, look.cores)
    return TopChip(
        chip=chip.chip,
        rack=chip.rack,
        tray=chip.tray,
        position=chip.position,
        rank=chip.rank,
        doing=doing(chip),
        slow=chip.health is ChipHealth.SLOW,
        utilization=min(meters.utilization, 1.0),
        flops_per_s=meters.flops_per_s,
        hbm_used_bytes=chip.hbm_used_bytes,
        hbm_capacity_bytes=chip.hbm_capacity_bytes,
        watts=meters.watts,
        link_utilization=meters.link_utilization,
        cores=dict(zip(look.core_ids(chip.chip), held, strict=True)),
    )


def doing(chip: ChipState) -> str:
    """A chip's state in one word; a slow one keeps its phase."""
    if chip.health in (ChipHealth.LOST, ChipHealth.HUNG):
        return str(chip.health)
    return phase_of_chip(chip)


def _tokens(look: EngineSnapshot) -> TokenFigures | None:
    window = look.snapshot.power.window
    if window is None or window.emulated_s <= 0:
        return None
    return TokenFigures(
        input_per_s=window.prompt_tokens / window.emulated_s,
        output_per_s=window.output_tokens / window.emulated_s,
        per_megawatt=window.tokens_per_megawatt,
        window_s=window.emulated_s,
    )


def host_figures(before: HostSample, now: HostSample) -> HostFigures:
    """This machine between two samples."""
    average = vcpu_usage(before, now)["average_usage"]
    server = runtime_vcpu_usage(before, now)
    seen = now.server is not None and not server["error"]
    usage = server["vcpu_usage"]
    return HostFigures(
        user_percent=average["user"] + average["nice"],
        system_percent=average["system"] + average["irq"] + average["soft_irq"],
        memory_used_bytes=now.memory_used_bytes,
        memory_total_bytes=now.memory_total_bytes,
        server_user_percent=usage["user"] if seen else None,
        server_system_percent=usage["system"] if seen else None,
        server_memory_bytes=now.server.memory_bytes if now.server else None,
    )
