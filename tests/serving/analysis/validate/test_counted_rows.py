from pathlib import Path

import numpy as np
import pytest

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.shipped_fits import shipped_fits
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_time import combine
from serving.analysis.validate.counted_rows import CountedRows, RowLoad, measured_peak_loads
from serving.analysis.validate.measured_row import read_rows
from serving.analysis.validate.row_deployment import deployment_of
from tests.serving.analysis.validate.made_up_measurements import write_rows

DATA_PARALLEL = {"decode_dp_attention": "True", "decode_ep": "8", "prefill_ep": "8"}


def load_of(tmp_path: Path, **change: str) -> RowLoad:
    (row,) = read_rows(write_rows(tmp_path / "rows.csv", [change]))
    return RowLoad(deployment=deployment_of(row.configuration, row.users), users=row.users)


def test_batches_go_from_one_to_the_users_in_half_octaves(tmp_path: Path) -> None:
    counted = CountedRows([load_of(tmp_path, conc="20")])

    assert counted.batches[0].tolist() == [1, 2, 3, 4, 6, 8, 12, 16, 20]


@pytest.mark.long
def test_ranks_fill_one_by_one_and_then_alike(tmp_path: Path) -> None:
    counted = CountedRows([load_of(tmp_path, conc="60", **DATA_PARALLEL)])

    assert counted.batches[0].tolist() == [1, 2, 4, 8, 16, 24, 32, 48, 64]


def test_batches_end_where_the_cache_is_full(tmp_path: Path) -> None:
    load = load_of(tmp_path, conc="5000", isl="8192")

    counted = CountedRows([load])

    assert counted.batches[0, -1] == int(load.deployment.slots) < 5_000


def test_a_counted_step_takes_what_the_cost_model_says(tmp_path: Path) -> None:
    load = load_of(tmp_path, conc="8")
    deployment = load.deployment
    pool = deployment.decode
    calibration = shipped_fits().everything.calibration("h200")

    times = CountedRows([load]).times([calibration])

    costs = StepCostModel(pool.system, deployment.model, pool.partition, calibration=ROOFLINE)
    batch = StepBatch(
        ranks=1,
        rank=np.zeros(8, dtype=np.int64),
        new_tokens=np.ones(8, dtype=np.int64),
        context_tokens=np.full(8, int(0.9 * 1_536), dtype=np.int64),
        logit_rows=np.array([8]),
    )
    terms = costs.terms(batch, measured_peak_loads(costs).loads(batch))
    assert terms is not None
    alone_s = combine(terms, calibration).duration_ns / 1e9
    assert times.decode_s[0, -1] == pytest.approx(alone_s)


def test_prompts_that_ride_hold_decodes_up_less_than_a_pass_of_their_own(tmp_path: Path) -> None:
    riding = load_of(tmp_path, framework="trt", conc="32")
    apart = load_of(tmp_path, framework="sglang", conc="32")
    counted = CountedRows([riding, apart])
    factors = shipped_fits().everything
    calibrations = [factors.calibration(stack.machine) for stack in counted.stacks]

    times = counted.times(calibrations)

    assert 0 < times.solo_steal_s[0] < times.solo_s[0]
    assert times.solo_steal_s[1] == times.solo_s[1]
    assert (times.full_s < times.solo_s).all()
