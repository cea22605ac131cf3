import math

import pytest

from emulator.specs.figure import Figure


def test_a_figure_is_assumed_when_its_source_says_so_first() -> None:
    assert Figure(value=1, unit="W", source="assumed: nobody says").assumed
    assert not Figure(value=1, unit="W", source="a datasheet (not assumed)").assumed


def test_a_whole_figure_counts_and_a_fraction_does_not() -> None:
    assert Figure(value=144.0, unit="chips", source="s").count == 144
    with pytest.raises(ValueError, match="not a whole number"):
        _ = Figure(value=1.5, unit="chips", source="s").count


@pytest.mark.parametrize(
    ("value", "unit", "source"),
    [(math.nan, "W", "s"), (math.inf, "W", "s"), (1.0, "", "s"), (1.0, "W", "")],
)
def test_a_figure_without_value_unit_or_source_is_refused(
    value: float, unit: str, source: str
) -> None:
    with pytest.raises(ValueError, match="a figure"):
        Figure(value=value, unit=unit, source=source)
