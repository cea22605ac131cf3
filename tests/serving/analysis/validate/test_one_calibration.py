"""What `validate` holds against measurements is what every other command times steps with."""

import argparse
from pathlib import Path

import numpy as np
import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.specs.batch import StepBatch
from emulator.specs.models import model_by_name
from emulator.specs.shipped_fits import CALIBRATIONS, FITTED, calibration_for, shipped_fits
from emulator.specs.systems import system_by_name
from emulator.ultraserver.step_cost import StepCostModel
from serving.analysis.steady_state.partitions import PartitionCandidate
from serving.analysis.validate.counted_rows import CountedRows, RowLoad, measured_peak_loads
from serving.analysis.validate.measured_row import MeasuredRow, read_rows
from serving.analysis.validate.row_deployment import deployment_of
from serving.commands import plan
from serving.engine.deployment import resolve_deployment
from serving.settings import Settings
from tests.serving.analysis.validate.made_up_measurements import write_rows

SYSTEM, MODEL, CHIPS = "dgx-h200", "deepseek-r1", 8


def batch(new_tokens: int, context_tokens: int, requests: int = 16) -> StepBatch:
    return StepBatch(
        ranks=CHIPS,
        rank=np.arange(requests, dtype=np.int64) % CHIPS,
        new_tokens=np.full(requests, new_tokens, dtype=np.int64),
        context_tokens=np.full(requests, context_tokens, dtype=np.int64),
        logit_rows=np.full(CHIPS, requests // CHIPS, dtype=np.int64),
    )


BATCHES = (batch(1, 1_000), batch(1, 30_000, 64), batch(512, 0), batch(2_048, 4_096))


def planned(calibration: str) -> StepCostModel:
    parser = argparse.ArgumentParser()
    plan.add_parser(parser.add_subparsers())
    args = parser.parse_args(
        [
            *("plan", "--model", MODEL, "--system", SYSTEM, "--rate", "1"),
            *("--slo", "ttft=1s,tpot=50ms", "--calibration", calibration),
        ]
    )
    sweep = plan.question_of(args).sweep
    candidate = PartitionCandidate(
        partition=served(calibration).partition, replicas=1, first_chip=0, kv_capacity_tokens=1
    )
    return sweep.assumptions.cost_model(sweep.system, model_by_name(MODEL), candidate)


def served(calibration: str) -> StepCostModel:
    settings = Settings(
        system=SYSTEM, model=MODEL, chips=CHIPS, calibration=calibration, computes=False
    )
    return resolve_deployment(settings, SMALL_MOE_DIR).machine(0.9).cost_model


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_serve_and_plan_take_the_same_time_for_every_step(name: str) -> None:
    theirs, ours = served(name), planned(name)

    alone = calibration_for("h200", name=name).of_work(fp4=False, drafts=False)
    assert theirs.calibration == ours.calibration == alone.inside_a_domain()
    for each in BATCHES:
        assert theirs.cost(each).duration_ns == ours.cost(each).duration_ns


@pytest.mark.long
def test_validate_times_its_rows_with_the_calibration_that_ships(tmp_path: Path) -> None:
    (row,) = read_rows(write_rows(tmp_path / "rows.csv", [{"conc": "8"}]))
    assert isinstance(row, MeasuredRow)
    deployment = deployment_of(row.configuration, row.users)
    counted = CountedRows([RowLoad(deployment=deployment, users=row.users)])
    shipped = calibration_for("h200", name=FITTED)

    (validated,) = (shipped_fits().everything.calibration(each.machine) for each in counted.stacks)
    times = counted.times([validated])

    assert validated == shipped
    pool = deployment.decode
    costs = StepCostModel(pool.system, deployment.model, pool.partition, calibration=shipped)
    for requests, seconds in zip((1, 2, 3, 4, 6, 8), times.decode_s[0], strict=True):
        step = one_rank(requests, new=1, context=int(0.9 * 1_536))
        loads = measured_peak_loads(costs).loads(step)
        assert costs.cost(step, loads).duration_ns / 1e9 == pytest.approx(seconds, abs=2e-9)
    prompt = one_rank(1, new=int(0.9 * 1_024), context=0)
    prompt_ns = costs.cost(prompt, measured_peak_loads(costs).loads(prompt)).duration_ns
    assert prompt_ns / 1e9 == pytest.approx(times.solo_s[0], abs=2e-9)


def one_rank(requests: int, *, new: int, context: int) -> StepBatch:
    return StepBatch(
        ranks=1,
        rank=np.zeros(requests, dtype=np.int64),
        new_tokens=np.full(requests, new, dtype=np.int64),
        context_tokens=np.full(requests, context, dtype=np.int64),
        logit_rows=np.array([requests], dtype=np.int64),
    )


def test_the_system_is_one_that_was_measured() -> None:
    assert system_by_name(SYSTEM).chip.name in shipped_fits().without
