"""Several steps costed together are each what it is alone."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import MODELS
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.systems import SYSTEMS
from emulator.ultraserver.step_cost import StepCost, StepCostModel
from tests.emulator.ultraserver.tiny_steps import Row, batch_of

PARTITIONS = {
    # its first rank lies in both racks
    ("gpt-oss-20b", "trn3-nl72x2"): Partition(chips=8, tp=4, ep=8, lnc=2, first_chip=70),
    ("deepseek-v3", "gb200-nvl72"): Partition(chips=4, tp=2, ep=4, lnc=152),
    ("llama-3.1-8b", "trn2-ultraserver"): Partition(chips=8, tp=4, ep=1, lnc=2),
}

rows_strategy = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 40), st.integers(0, 500)), max_size=8
)


def same(one: StepCost, other: StepCost) -> None:
    for field in fields(one):
        np.testing.assert_equal(getattr(one, field.name), getattr(other, field.name))


@pytest.mark.long
@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize(("model", "system"), PARTITIONS)
@settings(max_examples=8)
@given(steps=st.lists(rows_strategy, min_size=1, max_size=4))
def test_steps_costed_together_cost_what_each_costs_alone(
    model: str, system: str, overlap: Overlap, steps: list[list[Row]]
) -> None:
    partition = PARTITIONS[model, system]
    costs = StepCostModel(
        SYSTEMS[system], MODELS[model], partition, overlap=overlap, calibration=ROOFLINE
    )
    batches = [batch_of(partition.ranks, rows) for rows in steps]

    for together, batch in zip(costs.costs(batches), batches, strict=True):
        same(together, costs.cost(batch))


def test_ranks_that_lie_differently_keep_their_places_in_every_step() -> None:
    model = MODELS["gpt-oss-20b"]
    partition = Partition(chips=8, tp=4, ep=8, lnc=2, first_chip=70)  # as above
    costs = StepCostModel(SYSTEMS["trn3-nl72x2"], model, partition, calibration=ROOFLINE)
    first = batch_of(2, [(0, 1, 900)])
    second = batch_of(2, [(1, 1, 900)])

    for together, batch in zip(costs.costs([first, second]), (first, second), strict=True):
        same(together, costs.cost(batch))


def test_drafts_are_costed_with_each_step() -> None:
    costs = StepCostModel(
        SYSTEMS["trn3-nl72x2"],
        MODELS["deepseek-v3"],
        Partition(chips=16, tp=1, ep=16, lnc=2),
        draft_tokens=2,
        calibration=ROOFLINE,
    )
    batches = [batch_of(16, [(0, 1, 50)]), batch_of(16, [(3, 1, 900), (4, 1, 90)])]

    for together, batch in zip(costs.costs(batches), batches, strict=True):
        same(together, costs.cost(batch))


def test_a_step_of_another_partition_is_refused_and_no_steps_cost_nothing() -> None:
    costs = StepCostModel(
        SYSTEMS["trn3-nl72x2"],
        MODELS["gpt-oss-20b"],
        Partition(chips=2, ep=2, lnc=2),
        calibration=ROOFLINE,
    )

    assert costs.costs([]) == []
    with pytest.raises(ValueError, match="3 ranks in a batch for 2"):
        costs.costs([batch_of(2, [(0, 1, 5)]), batch_of(3, [(0, 1, 5)])])
