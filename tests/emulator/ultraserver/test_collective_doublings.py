from dataclasses import replace

import numpy as np
import pytest

from emulator.specs.batch import StepBatch
from emulator.specs.calibration import ROOFLINE
from emulator.specs.figure import Figure
from emulator.specs.models import model_by_name
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from emulator.ultraserver.step_cost import StepCostModel

BOX = system_by_name("dgx-h200")
LNC = BOX.chip.default_lnc.count
MODEL = model_by_name("deepseek-r1")
LAUNCHED = replace(
    ROOFLINE,
    collective_ns=Figure(value=1_000, unit="ns", source="a test"),
    exchange_ns=Figure(value=2_000, unit="ns", source="a test"),
)


def launch_ns(partition: Partition, system: SystemSpec = BOX) -> float:
    ranks = partition.ranks
    batch = StepBatch(
        ranks=ranks,
        rank=np.arange(ranks, dtype=np.int64),
        new_tokens=np.ones(ranks, dtype=np.int64),
        context_tokens=np.full(ranks, 100, dtype=np.int64),
        logit_rows=np.ones(ranks, dtype=np.int64),
    )
    cost = StepCostModel(system, MODEL, partition, calibration=LAUNCHED).cost(batch)
    return cost.parts_ns["collective_launch"]


@pytest.mark.parametrize(("tp", "doublings"), [(2, 1), (4, 2), (8, 3)])
def test_a_collective_is_launched_for_every_doubling_of_a_ranks_chips_by_hand(
    tp: int, doublings: int
) -> None:
    # two all-reduces in each of 61 layers, the embedded row's, and the gather of logits
    made = Partition(chips=tp, tp=tp, ep=1, expert_tp=tp, lnc=LNC)

    assert launch_ns(made) == pytest.approx(124 * doublings * 1_000)


def test_a_doubling_over_network_cards_is_worth_six_by_hand() -> None:
    # eight chips a box are three doublings, two boxes one more
    made = Partition(chips=16, tp=16, ep=1, expert_tp=16, lnc=LNC)

    assert launch_ns(made, BOX.cluster(2)) == pytest.approx(124 * (3 + 6) * 1_000)


@pytest.mark.parametrize("chips", [2, 8])
def test_an_exchange_is_launched_once_by_hand(chips: int) -> None:
    # a dispatch and a combine in each of 58 layers
    made = Partition(chips=chips, tp=1, ep=chips, lnc=LNC)

    assert launch_ns(made) == pytest.approx(116 * 2_000)
