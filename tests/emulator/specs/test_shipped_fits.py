import json
from math import log

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.calibration import ROOFLINE
from emulator.specs.chips import CHIPS
from emulator.specs.shipped_fits import (
    CALIBRATIONS,
    ShippedFits,
    calibration_for,
    shipped_fits,
)
from emulator.specs.stack_factors import NAMED_CONSTANTS


def test_factors_are_few() -> None:
    figures = dict(shipped_fits().everything.figures())

    of_releases = {name for name in figures if " overhead, " in name}
    assert len(figures) - len(of_releases) - len(NAMED_CONSTANTS) <= 18
    # Each is shrunk to 1: without that they would be as many as would fit anything.
    assert of_releases
    assert np.std([log(figures[name].value) for name in of_releases]) < 0.15


def test_fits_say_what_they_were_made_of() -> None:
    fits = shipped_fits()

    assert {"files", "sha256", "rows", "configurations", "date", "method"} <= set(fits.data)
    never_fitted = len(fits.fitted) - fits.data["configurations"]
    assert never_fitted == 2, "those of rows that are named for drafts and made none"
    for each in (fits.everything, *fits.without.values()):
        assert str(fits.data["sha256"])[:12] in each.source
        assert str(fits.data["date"]) in each.source


def test_a_fit_without_a_generations_only_machine_knows_nothing_of_it() -> None:
    fits = shipped_fits()

    assert "cdna4" in fits.everything.generations
    assert "cdna4" not in fits.without["mi355x"].generations
    assert "hopper" in fits.without["h200"].generations  # the H100's


def test_every_metric_has_an_interval_around_one_without_each_machine() -> None:
    fits = shipped_fits()

    for intervals in (fits.intervals, *fits.intervals_without.values()):
        means = {"tpot", "mean_ttft", "tokens_per_s"}
        assert means | {"ttft", "median_tpot", "p99_tpot", "p99_ttft"} == set(intervals)
        assert all(each.least < 1 < each.most for each in intervals.values())
    assert set(fits.intervals_without) == set(fits.without)


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
