"""Snapshots of engines of any number of chips: every figure follows from the chip's number."""

from typing import Any

from msgspec.structs import replace

from emulator.specs.chips import chip_by_name
from emulator.specs.fault import FaultKind
from emulator.specs.hbm_usage import StackUsage
from emulator.specs.systems import system_by_name
from emulator.ultraserver.ceilings import Ceilings
from serving.telemetry.neuron_tools.engine_snapshot import EngineSnapshot
from serving.wire.machine_snapshot import ChipMeters, MachineSnapshot, StepDurations
from serving.wire.machine_state import (
    ChipHealth,
    ChipState,
    LeaseState,
    RackState,
    RankState,
    TrainingTotals,
)
from serving.wire.power_report import (
    ChipPower,
    MachinePower,
    PowerWindow,
    RackPower,
    TokensPerMegawatt,
)
from serving.wire.system_description import (
    RackDescription,
    SpecFigure,
    SpecSheet,
    SystemDescription,
)
from tests.serving.telemetry.machine_states import a_state
from tests.serving.telemetry.telemetry_snapshots import a_telemetry

GIB = 2**30
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma")


def a_chip(chip: int, **given: Any) -> ChipState:
    """A chip of an NL72x2 with its own rank; its four stacks are held alike."""
    state = ChipState(
        chip=chip,
        rack=chip // 72,
        tray=chip % 72 // 4,
        position=chip % 4,
        health=ChipHealth.UP,
        slow_factor=1.0,
        spare=False,
        rank=chip,
        stacks=tuple(
            StackUsage(
                stack=stack,
                failed=False,
                capacity_bytes=36 * GIB,
                owner_bytes={
                    "weights/experts": 4 * GIB,
                    "weights/attention": 1 * GIB,
                    "kv": 20 * GIB,
                    "activations": 2 * GIB,
                    "collectives": GIB // 2,
                    "microcode": GIB // 4,
                },
            )
            for stack in range(4)
        ),
        cut_links=(),
        expert_slots=16,
        expert_slots_filled=16,
        watts=500.0,
    )
    return replace(state, **given)


def meters_of(chip: int, *, emulated_s: float) -> ChipMeters:
    """Busy for (chip + 1) / 200 of the time, at 2 TFLOPS times (chip + 1)."""
    share = (chip + 1) / 200
    return ChipMeters(
        chip=chip,
        engine_busy_s=dict.fromkeys(ENGINES, share * emulated_s),
        busy_s=share * emulated_s,
        flops=2e12 * (chip + 1) * emulated_s,
        hbm_bytes=1e12 * emulated_s,
        link_bytes=1e11 * emulated_s,
        joules=500.0 * emulated_s,
        ecc_corrected=0,
        ecc_uncorrected=0,
        watts=500.0,
        utilization=share,
        engine_utilization=dict.fromkeys(ENGINES, share),
        link_utilization=0.125,
        hbm_utilization=0.25,
        flops_per_s=2e12 * (chip + 1),
    )


def a_lease(*chips: int, phase: str = "training", steps: int = 10) -> LeaseState:
    return LeaseState(
        number=3,
        chips=chips,
        ranks=chips,
        phase=phase,
        reason="the job has the chips",
        since_emulated_s=5.0,
        until_emulated_s=None,
        lost_chips=(),
        drained_requests=0,
        moved_requests=0,
        experts_moved=0,
        bytes_links=0,
        bytes_storage=0,
        joules=0.0,
        drain_s=0.0,
        experts_s=0.0,
        vacate_s=0.0,
        restore_s=0.0,
        warm_s=0.0,
        training=TrainingTotals(
            steps=steps,
            tokens=1000,
            loss=2.5,
            joules=1.0,
            emulated_s=1.0,
            watts=1500.0,
            hbm_bytes_per_chip=GIB,
        ),
    )


def a_description(*, chips: int, lnc: int = 2, system: str = "trn3-nl72x2") -> SystemDescription:
    spec = system_by_name(system)
    cores = SpecFigure(name="cores", value=8.0, unit="cores", source="here", assumed=False)
    return SystemDescription(
        ultraserve_version="0.1.0",
        vllm_version="0.32.0",
        system=SpecSheet(name=spec.name, figures=()),
        chip=SpecSheet(name=spec.chip.name, figures=(cores,)),
        model=SpecSheet(name="qwen3-30b-a3b", figures=()),
        weights="small-moe",
        routing="computed",
        topology=spec.topology,
        switch_generation=spec.switch_generation,
        partition=replace(a_state().partition, chips=chips, dp=chips, ep=chips, lnc=lnc, spares=0),
        racks=tuple(
            RackDescription(
                rack=rack,
                trays=spec.trays_per_rack.count,
                chips_per_tray=spec.chips_per_tray.count,
                switch_trays=spec.switch_trays_per_rack.count,
                chips=tuple(chip for chip in range(chips) if chip // spec.chips_per_rack == rack),
            )
            for rack in range(spec.racks.count)
        ),
        clock="dilated:10",
        dilation=10.0,
        calibration="fitted",
        overlap="none",
        kv_blocks=1000,
        ultraserver="",
    )


def a_power(*, chips: int, emulated_s: float) -> MachinePower:
    return MachinePower(
        emulated_s=emulated_s,
        chip_watts=500.0 * chips,
        it_watts=600.0 * chips,
        facility_watts=750.0 * chips,
        parts_watts={"chips": 500.0 * chips, "cooling": 150.0 * chips},
        chip_budget_watts=1000.0,
        provisioned_watts=1134.0 * chips,
        pue=1.25,
        chip_joules=500.0 * chips * emulated_s,
        facility_joules=750.0 * chips * emulated_s,
        chips=tuple(ChipPower(chip=chip, watts=500.0) for chip in range(chips)),
        racks=(
            RackPower(
                rack=0,
                chips=chips,
                chip_watts=500.0 * chips,
                it_watts=600.0 * chips,
                provisioned_watts=1134.0 * chips,
            ),
        ),
        window=PowerWindow(
            emulated_s=5.0,
            prompt_tokens=61_725,
            output_tokens=6_170,
            facility_joules=750.0 * chips * 5,
            tokens_per_megawatt=tuple(
                TokensPerMegawatt(
                    basis=basis,
                    watts=750.0 * chips,
                    why="here",
                    output=1_234 / (750.0 * chips) * 1e6,
                    input=12_345 / (750.0 * chips) * 1e6,
                    total=13_579 / (750.0 * chips) * 1e6,
                )
                for basis in ("provisioned", "drawn", "all-in")
            ),
        ),
    )


def a_snapshot(
    count: int = 4, *, emulated_s: float = 100.0, steps: int = 1000, **given: Any
) -> EngineSnapshot:
    """An engine on the first chips of an NL72x2; `given` are fields of its state.

    `lnc` and `system` are of its description, `faults_by_kind` of the report.
    """
    lnc, system = given.pop("lnc", 2), given.pop("system", "trn3-nl72x2")
    faults = dict.fromkeys(map(str, FaultKind), 0) | given.pop("faults_by_kind", {})
    description = a_description(chips=count, lnc=lnc, system=system)
    fields = {
        "emulated_s": emulated_s,
        "dilation": 10.0,
        "steps": steps,
        "system": system,
        "partition": description.partition,
        "chips": tuple(a_chip(chip) for chip in range(count)),
        "ranks": tuple(
            RankState(
                rank=rank,
                up=True,
                requests_running=2,
                requests_waiting=1,
                kv_blocks_used=250,
                kv_blocks=1000,
            )
            for rank in range(count)
        ),
        "racks": (RackState(rack=0, switch_trays_up=10, switch_trays=10),),
        "faults": (),
    } | given
    state = replace(a_state(), **fields)
    report = MachineSnapshot(
        emulated_s=emulated_s,
        window_s=5.0,
        state=state,
        telemetry=a_telemetry(
            emulated_s=emulated_s,
            steps=steps,
            dilation=10.0,
            chips=count,
            requests_running=2 * count,
            requests_waiting=count,
            kv_blocks_used=250 * count,
            kv_blocks=1000 * count,
        ),
        power=a_power(chips=count, emulated_s=emulated_s),
        meters=tuple(meters_of(chip, emulated_s=emulated_s) for chip in range(count)),
        parts_s={"attention": 1.0},
        steps_by_phase={"prefill": 10, "mixed": 20, "decode": steps - 30},
        step_times=_times(0.002),
        device_times=_times(0.001),
        faults_by_kind=faults,
        faults_open=sum(faults.values()),
        ceilings=Ceilings(
            flops_format="fp8",
            flops_per_s=chip_by_name("trainium3").tensor_flops_per_s("fp8"),
            hbm_bytes_per_s=4.2e12,
            idle_watts=200.0,
        ),
        link_capacity_bytes_per_s=(1.152e12,) * count,
        neuroncores_per_chip=8 // lnc,
    )
    return EngineSnapshot(snapshot=report, description=description)


def _times(median_s: float) -> StepDurations:
    return StepDurations(
        steps=1000,
        p0_s=0.5 * median_s,
        p1_s=0.6 * median_s,
        p25_s=0.9 * median_s,
        p50_s=median_s,
        p75_s=1.1 * median_s,
        p99_s=2.0 * median_s,
        p100_s=4.0 * median_s,
    )
