"""Cores that move tokens compute nothing while exchanges hide behind prompts."""

from dataclasses import replace

import numpy as np
import pytest

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.figure import Figure
from emulator.specs.models import model_by_name
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_time import combine

CHIPS = 8
FEWER = replace(ROOFLINE, computing_share=Figure(112 / 132, "of cores", "a test"))


def costs(overlap: Overlap) -> StepCostModel:
    system = system_by_name("dgx-h800")
    lnc = system.chip.default_lnc.count
    made = Partition(chips=CHIPS, ep=CHIPS, lnc=lnc)
    return StepCostModel(
        system, model_by_name("deepseek-r1"), made, overlap=overlap, calibration=FEWER
    )


def batch(*, new: int, context: int) -> StepBatch:
    """Two requests a rank."""
    requests = 2 * CHIPS
    return StepBatch(
        ranks=CHIPS,
        rank=np.repeat(np.arange(CHIPS), 2),
        new_tokens=np.full(requests, new),
        context_tokens=np.full(requests, context),
        logit_rows=np.full(CHIPS, 2),
    )


PROMPTS, DECODES = batch(new=4_096, context=0), batch(new=1, context=1_000)


def test_shares_of_cores_by_hand() -> None:
    assert calibration_for("h800").computing_share.value == pytest.approx((132 - 20) / 132)
    assert calibration_for("trainium3").computing_share.value == 1
    assert ROOFLINE.computing_share.value == 1


def test_prompts_are_computed_by_the_cores_that_are_left() -> None:
    terms = costs(Overlap.TWO_BATCH).terms(PROMPTS)
    assert terms is not None
    found = combine(terms, FEWER, Overlap.TWO_BATCH)

    ratio = found.duration_ns / combine(terms, ROOFLINE, Overlap.TWO_BATCH).duration_ns
    assert 1.1 < ratio < 132 / 112
    assert costs(Overlap.TWO_BATCH).cost(PROMPTS).duration_ns == pytest.approx(
        found.duration_ns, abs=1
    )


def test_decodes_and_steps_without_overlap_have_all_cores() -> None:
    for overlap, given in ((Overlap.TWO_BATCH, DECODES), (Overlap.NONE, PROMPTS)):
        terms = costs(overlap).terms(given)
        assert terms is not None

        all_cores = combine(terms, ROOFLINE, overlap)

        assert costs(overlap).cost(given).duration_ns == pytest.approx(all_cores.duration_ns, abs=1)
