from dataclasses import replace

import numpy as np
import pytest

from emulator.specs.calibration import ROOFLINE
from emulator.specs.figure import Figure
from emulator.specs.partition import Partition
from emulator.specs.seating import VACANT
from emulator.specs.systems import SYSTEMS
from emulator.ultraserver.step_cost import StepCostModel
from tests.emulator.specs.tiny_model import TINY

TWO_BOXES = SYSTEMS["dgx-h100"].cluster(2)
STORES = replace(
    ROOFLINE,
    exchange_ns=Figure(100.0, "ns", "a test"),
    store_share=Figure(0.5, "of peak", "a test"),
    store_ns=Figure(40.0, "ns", "a test"),
)


def model_on(chips: int, ep: int, *, first_chip: int = 0) -> StepCostModel:
    model = replace(TINY, experts=32, experts_per_token=4)
    made = Partition(chips=chips, ep=ep, lnc=132, first_chip=first_chip)
    return StepCostModel(TWO_BOXES, model, made, calibration=STORES)


@pytest.mark.parametrize(
    ("chips", "ep", "first_chip", "start_ns"),
    [(8, 8, 0, 40), (8, 8, 8, 40), (8, 8, 4, 100), (16, 8, 0, 40), (16, 16, 0, 100)],
)
def test_cores_store_rows_where_no_expert_group_leaves_its_box(
    chips: int, ep: int, first_chip: int, start_ns: float
) -> None:
    made = model_on(chips, ep, first_chip=first_chip)

    assert made.calibration.exchange_ns.value == start_ns
    assert made.layout.stores_slower == 2, "and what is forwarded inside a box takes twice as long"


def test_a_spare_in_another_box_takes_the_exchange_over_network_cards() -> None:
    made = model_on(8, 8)
    seats = np.arange(8)

    def seated(physical: np.ndarray) -> StepCostModel:
        layout = made.layout
        return made.with_machine(
            all_to_all=layout.all_to_all, chips_up=layout.chips_up, physical=physical
        )

    assert seated(np.where(seats == 3, 9, seats)).calibration.exchange_ns.value == 100
    assert seated(np.where(seats == 3, VACANT, seats)).calibration.exchange_ns.value == 40
