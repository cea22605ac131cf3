from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.figure import Figure


def figure(value: float) -> Figure:
    return Figure(value=value, unit="of a test", source="a test")


def test_trainium3_has_a_square_array_that_looks_four_times_as_deep_to_block_formats() -> None:
    engine = TRAINIUM3.matrix

    assert (engine.tile_rows.count, engine.tile_columns.count) == (128, 128)
    assert engine.mx_tile_rows.count == 512
    assert engine.sub_arrays.count == 4
    assert engine.fill_drain_ns.value == pytest.approx(256 / 2.4)


@pytest.mark.parametrize("name", ["tile_rows", "moving_rows_min", "sub_arrays", "ramp_share"])
def test_an_array_without_a_size_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0: expected > 0"):
        replace(TRAINIUM3.matrix, **{name: figure(0)})


def test_an_engine_may_start_at_its_full_rate_and_fill_at_once_but_not_faster() -> None:
    replace(TRAINIUM3.matrix, ramp_ns=figure(0), fill_drain_ns=figure(0), ramp_share=figure(1))
    with pytest.raises(ConfigError, match=r"ramp_share=1\.5: expected above 0, at most 1"):
        replace(TRAINIUM3.matrix, ramp_share=figure(1.5))
