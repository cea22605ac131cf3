from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.calibration import ROOFLINE
from emulator.specs.figure import Figure


def figure(value: float) -> Figure:
    return Figure(value=value, unit="of a test", source="a test")


def test_a_roofline_reaches_every_peak_and_adds_nothing() -> None:
    for name, value in ROOFLINE.figures():
        assert value.value == (1 if name.endswith(("_share", "_overhead")) else 0), name


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01])
def test_a_share_of_a_peak_is_above_none_and_at_most_all(share: float) -> None:
    with pytest.raises(ConfigError, match=r"roofline\.memory_share=.*above 0, at most 1"):
        replace(ROOFLINE, memory_share=figure(share))


def test_an_overhead_takes_no_time_away() -> None:
    with pytest.raises(ConfigError, match=r"roofline\.layer_ns=-1: expected at least 0"):
        replace(ROOFLINE, layer_ns=figure(-1))


@pytest.mark.parametrize("given", ["store_share", "store_ns"])
def test_stores_have_a_share_and_a_start_or_neither(given: str) -> None:
    with pytest.raises(ConfigError, match="store_share and store_ns, or neither"):
        replace(ROOFLINE, **{given: figure(0.5)})
