"""Steps side by side take as long as `combine` says of each of them alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.figure import Figure
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.ultraserver.peak_expert_load import PeakExpertLoad
from emulator.ultraserver.step_columns import StepColumns
from emulator.ultraserver.step_cost import StepCostModel
from emulator.ultraserver.step_rows import ColumnCalibrations
from emulator.ultraserver.step_terms import StepTerms
from emulator.ultraserver.step_time import combine

BOX = system_by_name("dgx-h200")
LNC = BOX.chip.default_lnc.count
MODEL = model_by_name("deepseek-r1")


def batch_of(ranks: int, requests: int, *, new: int = 1, context: int = 900) -> StepBatch:
    rank = np.arange(requests, dtype=np.int64) % ranks
    return StepBatch(
        ranks=ranks,
        rank=rank,
        new_tokens=np.full(requests, new, dtype=np.int64),
        context_tokens=np.full(requests, context, dtype=np.int64),
        logit_rows=np.bincount(rank, minlength=ranks),
    )


def terms_of(partition: Partition, drafts: int = 0) -> list[StepTerms]:
    costs = StepCostModel(BOX, MODEL, partition, draft_tokens=drafts, calibration=ROOFLINE)
    busiest = PeakExpertLoad(costs)
    ranks = partition.ranks
    batches = [batch_of(ranks, count) for count in (1, 3, ranks, 4 * ranks)]
    batches.append(batch_of(ranks, 1, new=1_500, context=0))
    found = [costs.terms(batch, busiest.loads(batch)) for batch in batches]
    return [terms for terms in found if terms is not None]


def figure(value: float) -> Figure:
    return Figure(value=value, unit="of a test", source="a test")


def calibration(shares: tuple[float, float, float], overhead_ns: float) -> Calibration:
    return replace(
        ROOFLINE,
        tensor_share=figure(shares[0]),
        memory_share=figure(shares[1]),
        link_share=figure(shares[2]),
        collective_ns=figure(overhead_ns),
        step_ns=figure(10 * overhead_ns),
        layer_ns=figure(3 * overhead_ns),
        expert_layer_ns=figure(2 * overhead_ns),
        request_ns=figure(overhead_ns),
        prefill_step_ns=figure(100 * overhead_ns),
        turn_taking=figure(0.5),
    )


COLUMNS = {
    "tensor parallel": terms_of(Partition(chips=8, tp=8, ep=1, expert_tp=8, lnc=LNC)),
    "experts apart": terms_of(Partition(chips=8, tp=8, ep=8, lnc=LNC)),
    "data parallel": terms_of(Partition(chips=8, tp=1, ep=8, lnc=LNC)),
    "drafts": terms_of(Partition(chips=8, tp=1, ep=8, lnc=LNC), drafts=2),
}


@pytest.mark.long
@settings(max_examples=15)
@given(
    shares=st.tuples(*(st.floats(0.05, 1.0) for _ in range(3))),
    overhead_ns=st.floats(0, 1e6),
    layout=st.sampled_from(sorted(COLUMNS)),
)
def test_steps_side_by_side_take_what_each_takes_alone(
    shares: tuple[float, float, float], overhead_ns: float, layout: str
) -> None:
    terms, each = COLUMNS[layout], calibration(shares, overhead_ns)

    together = StepColumns(terms).durations_ns(ColumnCalibrations(calibrations=[each]))

    alone = [combine(one, each).duration_ns for one in terms]
    assert together.tolist() == pytest.approx(alone, rel=1e-9)


def test_every_column_has_its_own_calibration() -> None:
    terms = COLUMNS["tensor parallel"]
    others = [
        calibration((1 / (1 + place), 1.0, 1.0), 100.0 * place) for place in range(len(terms))
    ]

    together = StepColumns(terms).durations_ns(ColumnCalibrations(calibrations=others))

    alone = [combine(one, each).duration_ns for one, each in zip(terms, others, strict=True)]
    assert together.tolist() == pytest.approx(alone, rel=1e-9)


def test_nothing_and_slow_chips_cannot_stand_side_by_side() -> None:
    slow = replace(COLUMNS["data parallel"][0], slow=np.full(8, 2.0))

    with pytest.raises(ValueError, match="at least one step"):
        StepColumns([])
    with pytest.raises(ValueError, match="not slow"):
        StepColumns([slow])


def test_layers_whose_experts_differ_cannot_stand_side_by_side() -> None:
    costs = StepCostModel(BOX, MODEL, Partition(chips=8, tp=1, ep=8, lnc=LNC), calibration=ROOFLINE)
    batch = batch_of(8, 16)
    loads = PeakExpertLoad(costs).loads(batch)
    pairs = np.array(loads.pairs)
    pairs[0] *= 2
    uneven = costs.terms(batch, replace(loads, pairs=pairs))
    assert uneven is not None

    with pytest.raises(ValueError, match="all alike"):
        StepColumns([uneven])
