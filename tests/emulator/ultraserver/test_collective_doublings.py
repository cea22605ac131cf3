from dataclasses import replace

import numpy as np
import pytest

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.figure import Figure
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from emulator.ultraserver.step_cost import StepCostModel

BOX = system_by_name("dgx-h200")
LNC = BOX.chip.default_lnc.count
MODEL = model_by_name("deepseek-r1")
LAUNCHED = replace(ROOFLINE, collective_ns=Figure(value=1_000, unit="ns", source="a test"))


def launch_ns(partition: Partition) -> float:
    ranks = partition.ranks
    batch = StepBatch(
        ranks=ranks,
        rank=np.arange(ranks, dtype=np.int64),
        new_tokens=np.ones(ranks, dtype=np.int64),
        context_tokens=np.full(ranks, 100, dtype=np.int64),
        logit_rows=np.ones(ranks, dtype=np.int64),
    )
    cost = StepCostModel(BOX, MODEL, partition, calibration=LAUNCHED).cost(batch)
    return cost.parts_ns["collective_launch"]


@pytest.mark.parametrize(("tp", "doublings"), [(2, 1), (4, 2), (8, 3)])
def test_a_collective_is_launched_for_every_doubling_of_a_ranks_chips_by_hand(
    tp: int, doublings: int
) -> None:
    # two all-reduces in each of 61 layers, the embedded row's, and the gather of logits
    made = Partition(chips=tp, tp=tp, ep=1, expert_tp=tp, lnc=LNC)

    assert launch_ns(made) == pytest.approx(124 * doublings * 1_000)


@pytest.mark.parametrize(("chips", "doublings"), [(2, 1), (8, 3)])
def test_an_exchange_is_launched_for_every_doubling_of_its_group_by_hand(
    chips: int, doublings: int
) -> None:
    # a dispatch and a combine in each of 58 layers
    made = Partition(chips=chips, tp=1, ep=chips, lnc=LNC)

    assert launch_ns(made) == pytest.approx(116 * doublings * 1_000)
