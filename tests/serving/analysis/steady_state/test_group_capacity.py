"""What a group serves by the cost model: against the steady state, asked for on its own."""

from typing import Any

import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.memory.chip_contents import HbmTerms
from emulator.specs.models import model_by_name
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from loadgen.measures.slo import Slo
from serving.analysis.steady_state.group_capacity import (
    QUEUE_SHARE,
    group_reading_s,
    group_requests_per_s,
)
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.analysis.steady_state.request_shape import RequestShape
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.analysis.steady_state.sweep import Sweep, operating_points
from serving.engine.deployment import Deployment, resolve_deployment
from serving.settings import Settings

MODEL = "gpt-oss-120b"
SHAPE = RequestShape(prompt_tokens=1_155, output_tokens=211)


def served(**settings: Any) -> Deployment:
    return resolve_deployment(Settings(model=MODEL, **settings), SMALL_MOE_DIR)


def rate(deployment: Deployment, slo: str = "ttft=1s,tpot=30ms", **given: Any) -> float | None:
    asked: dict[str, Any] = {"seats": 128, "utilization": 0.92, "group_chips": 4, "lend_groups": 1}
    machine = deployment.machine(0.92)
    return group_requests_per_s(machine, slo=Slo.parse(slo), shape=SHAPE, **(asked | given))


def test_a_group_serves_its_part_of_a_share_of_the_steady_state() -> None:
    system = system_by_name("trn3-nl72x2")
    limit_ns = 30e6
    best = {}
    for chips in (4, 8):
        sweep = Sweep(
            system=system,
            model=model_by_name(MODEL),
            shape=SHAPE,
            asked=PartitionFilter(chips=(chips,), tp=(1,), ep=(chips,), lnc=(2,)),
            precisions=("stored",),
            batches=(1, 2, 4, 8, 16, 32, 64, 128),
            terms=HbmTerms(utilization=0.92),
            assumptions=StepAssumptions(calibration=calibration_for(system.chip.name)),
        )
        points = [each for each in operating_points(sweep) if each.tpot_ns <= limit_ns]
        most = max(points, key=lambda each: each.requests_per_s)
        best[chips] = most.requests_per_s / most.candidate.replicas
    found = rate(served(chips=8))
    # A sweep puts a replica where it is slowest; this partition begins at the first chip.
    assert found == pytest.approx(QUEUE_SHARE * min(best[4], best[8] / 2), rel=0.02)


def test_more_is_served_of_a_looser_target_and_by_more_chips() -> None:
    eight = served(chips=8)
    strict, loose = rate(eight, "tpot=12ms"), rate(eight, "tpot=100ms")
    assert strict is not None
    assert loose is not None
    assert strict < loose
    half, whole = rate(eight, group_chips=2), rate(eight)
    assert half is not None
    assert whole is not None
    assert half == pytest.approx(whole / 2, rel=0.2)


def test_nobody_keeps_what_cannot_be_kept() -> None:
    assert rate(served(chips=8), "tpot=1us") is None
    assert rate(served(chips=8), "ttft=1us") is None


def test_weights_are_read_once_by_each_tray() -> None:
    deployment = served(chips=8)
    group_s = group_reading_s(deployment.machine(0.92), group_chips=4)
    one_s = group_reading_s(deployment.machine(0.92), group_chips=1)
    # A tray's four chips share its drives.
    assert group_s == pytest.approx(4 * one_s, rel=0.01)
