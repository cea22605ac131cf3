import json

import pytest

from emulator.errors import ConfigError
from emulator.specs.calibration import ROOFLINE
from emulator.specs.chips import CHIPS
from emulator.specs.shipped_fits import (
    CALIBRATIONS,
    SHARED_NAMES,
    ShippedFits,
    calibration_for,
    shipped_fits,
)
from emulator.specs.stack_factors import NAMED_CONSTANTS


def test_factors_are_few() -> None:
    everything = shipped_fits().everything

    assert len(SHARED_NAMES) <= 7
    beside = len(everything.figures()) - len(NAMED_CONSTANTS)  # which are not fitted
    assert beside == len(SHARED_NAMES) + 2 * len(everything.machines) + 2 * len(
        everything.frameworks
    )


def test_fits_say_what_they_were_made_of() -> None:
    fits = shipped_fits()

    assert {"file", "sha256", "rows", "configurations", "date", "method"} <= set(fits.data)
    for each in (fits.everything, *fits.halves.values(), *fits.without.values()):
        assert str(fits.data["sha256"])[:12] in each.source
        assert str(fits.data["date"]) in each.source


def test_every_half_leaves_out_what_another_has() -> None:
    fits = shipped_fits()

    assert sorted(fits.halves) == [0, 1, 2, 3, 4]
    assert len(fits.fitted_in) == fits.data["configurations"]
    for seed in fits.halves:
        seen = sum(seed in seeds for seeds in fits.fitted_in.values())
        assert 0.4 < seen / len(fits.fitted_in) < 0.6


def test_a_fit_without_a_machine_knows_nothing_of_it() -> None:
    fits = shipped_fits()

    for machine, each in fits.without.items():
        assert machine not in each.machines
        assert machine in fits.everything.machines


def test_the_file_holds_all_that_is_read() -> None:
    fits = shipped_fits()

    again = ShippedFits.from_data(json.loads(json.dumps(fits.as_data())))

    assert again == fits


@pytest.mark.parametrize("chip", CHIPS)
def test_every_chip_has_a_fitted_calibration(chip: str) -> None:
    made = calibration_for(chip)

    assert made.name == "fitted"
    assert made.layer_ns.value > 0
    assert made.prefill_step_ns.value == 0
    assert made.prefill_step_ns.assumed


def test_the_roofline_can_be_asked_for_by_its_name() -> None:
    assert CALIBRATIONS == ("roofline", "fitted")
    assert calibration_for("trainium3", name="roofline") is ROOFLINE
    with pytest.raises(ConfigError, match="calibration=best: expected one of roofline, fitted"):
        calibration_for("trainium3", name="best")
    with pytest.warns(FutureWarning, match="'ceiling' is now called 'roofline'"):
        assert calibration_for("trainium3", name="ceiling") is ROOFLINE
    with pytest.raises(ConfigError, match="chip=abacus"):
        calibration_for("abacus")
