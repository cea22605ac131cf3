from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.power.draw import ACTIVITY_WEIGHTS, activity, chip_watts
from emulator.specs.figure import Figure
from emulator.specs.trainium3 import TRAINIUM3

IDLE = {name: np.zeros(1) for name in ACTIVITY_WEIGHTS}

shares = st.fixed_dictionaries(
    {name: st.floats(0, 1).map(lambda share: np.array([share])) for name in ACTIVITY_WEIGHTS}
)


def test_a_chip_that_does_nothing_draws_its_floor_and_one_that_does_everything_its_budget() -> None:
    busy = {name: np.ones(1) for name in ACTIVITY_WEIGHTS}

    assert chip_watts(TRAINIUM3, IDLE).tolist() == [200]
    assert chip_watts(TRAINIUM3, busy).tolist() == [1_000]


@pytest.mark.parametrize(
    ("engine", "watts"),
    [("tensor", 760), ("dma", 440), ("vector", 280), ("scalar", 280), ("collectives", 240)],
)
def test_each_engine_alone_adds_its_share_of_the_800_watts_above_the_floor(
    engine: str, watts: float
) -> None:
    alone = {**IDLE, engine: np.ones(1)}

    assert chip_watts(TRAINIUM3, alone).tolist() == pytest.approx([watts])


def test_chips_draw_by_their_own_shares_and_by_their_own_spec() -> None:
    some = {name: np.zeros(3) for name in ACTIVITY_WEIGHTS}
    some["dma"] = np.array([0.0, 0.5, 1.0])
    cooler = replace(TRAINIUM3, budget_watts=Figure(value=700, unit="W", source="a test"))

    assert chip_watts(TRAINIUM3, some).tolist() == pytest.approx([200, 320, 440])
    assert chip_watts(cooler, some).tolist() == pytest.approx([200, 275, 350])


@given(first=shares, second=shares)
def test_watts_stay_between_floor_and_budget_and_never_fall_with_activity(
    first: dict[str, np.ndarray], second: dict[str, np.ndarray]
) -> None:
    busier = {name: np.maximum(first[name], second[name]) for name in first}

    assert 0 <= activity(first)[0] <= activity(busier)[0] <= 1
    assert 200 <= chip_watts(TRAINIUM3, first)[0] <= chip_watts(TRAINIUM3, busier)[0] <= 1_000


def test_an_engine_without_a_weight_and_a_weight_without_an_engine_are_refused() -> None:
    with pytest.raises(ValueError, match="engines are"):
        activity({**IDLE, "gpsimd": np.zeros(1)})
    with pytest.raises(ValueError, match="engines are"):
        activity({"tensor": np.zeros(1)})
