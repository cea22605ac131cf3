from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.calibration import ROOFLINE
from emulator.specs.figure import Figure
from emulator.ultraserver.step_rows import ColumnCalibrations, together_ns


def turns(value: float) -> Figure:
    return Figure(value=value, unit="1 / exponent", source="a test")


@pytest.mark.parametrize(("turn_taking", "expected"), [(0.0, 4.0), (0.5, 5.0), (1.0, 7.0)])
def test_engines_overlap_perfectly_or_partly_or_not_at_all_by_hand(
    turn_taking: float, expected: float
) -> None:
    assert together_ns(np.array([3.0, 4.0]), turn_taking) == pytest.approx(expected)


def test_idle_engines_take_no_time() -> None:
    assert together_ns(np.zeros((3, 2)), 0.5).tolist() == [0.0, 0.0]


@given(
    busy=st.lists(st.floats(0, 1e12), min_size=2, max_size=5),
    turn_taking=st.floats(0.02, 1.0),
)
def test_a_phase_lasts_between_its_busiest_engine_and_all_of_them(
    busy: list[float], turn_taking: float
) -> None:
    engines = np.array(busy)

    lasted = float(together_ns(engines, turn_taking))

    assert engines.max() * (1 - 1e-12) <= lasted <= engines.sum() * (1 + 1e-12)


def test_turn_taking_is_a_share() -> None:
    with pytest.raises(ConfigError, match=r"roofline\.turn_taking=1\.5: expected 0 to 1"):
        replace(ROOFLINE, turn_taking=turns(1.5))


def test_columns_take_turns_alike() -> None:
    other = replace(ROOFLINE, turn_taking=turns(0.5))

    with pytest.raises(ValueError, match="alike"):
        ColumnCalibrations(calibrations=[ROOFLINE, other])
