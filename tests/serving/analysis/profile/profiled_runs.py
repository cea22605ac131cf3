"""A profiled run by hand: a decode step, a pause, a prefill, a gap, a decode step."""

from typing import Any

from emulator.ultraserver.ceilings import Ceilings
from serving.analysis.profile.profiled_run import Moment, ProfiledChip, ProfiledRun
from serving.wire.step_record import StepPhase, StepWhatIf
from tests.serving.telemetry.step_records import MS, a_prefill, a_step

CEILINGS = Ceilings(flops_format="bf16", flops_per_s=1e12, hbm_bytes_per_s=1e12, idle_watts=200.0)


def a_chip(chip: int, rank: int | None) -> ProfiledChip:
    """100 GB, with 30 of weights and 40 of KV pool."""
    return ProfiledChip(
        chip=chip,
        rack=0,
        tray=0,
        position=chip,
        rank=rank,
        hbm_capacity_bytes=100 * 10**9,
        owner_bytes={"weights": 30 * 10**9, "kv": 40 * 10**9} if rank is not None else {},
        idle_watts=200.0,
    )


def a_run(**given: Any) -> ProfiledRun:
    """50 ms: steps at 0-10, 15-25 (held up before) and 30-40; two chips and a spare."""
    fields: dict[str, Any] = {
        "source": "virtual",
        "system": "trn3-nl72x2",
        "model": "qwen3-30b-a3b",
        "weights": "none",
        "routing": "uniform (expected value)",
        "calibration": "fitted",
        "tp": 1,
        "begin_ns": 0,
        "end_ns": 50 * MS,
        "chips": (a_chip(0, 0), a_chip(1, 1), a_chip(2, None)),
        "kv_blocks": (200, 200),
        "steps": (
            a_step(0),
            a_prefill(1, begin_ns=15 * MS, pause_ns=5 * MS),
            a_step(2, begin_ns=30 * MS),
        ),
        "moments": (Moment(name="hang-chip chip 2", at_ns=9 * MS, detail="a spare"),),
        "what_ifs": (
            a_what_if(0, StepPhase.DECODE, 10 * MS, memory=6 * MS, tensor=10 * MS),
            a_what_if(2, StepPhase.DECODE, 30 * MS, memory=24 * MS, tensor=28 * MS),
            a_what_if(1, StepPhase.PREFILL, 10 * MS, memory=10 * MS, tensor=5 * MS),
        ),
    }
    return ProfiledRun(**(fields | given))


def a_what_if(step: int, phase: StepPhase, duration_ns: int, **what_if_ns: int) -> StepWhatIf:
    return StepWhatIf(
        step=step,
        phase=phase,
        duration_ns=duration_ns,
        factor=2.0,
        what_if_ns=what_if_ns,
        samples=3,
    )
