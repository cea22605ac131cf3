"""Durations of the wall over several epochs."""

import pytest

from emulator.sim.epochs import EpochMap
from serving.telemetry.clock_epochs import emulated_duration_s


def test_a_duration_is_converted_by_each_epoch_that_it_lies_in() -> None:
    first = EpochMap.at(now_ns=0, wall_ns=1_000 * 10**9, dilation=4.0)
    epochs = first.changed(2.0, wall_ns=1_020 * 10**9)

    assert emulated_duration_s(epochs, 1_012.0, 1_016.0) == pytest.approx(1.0)
    assert emulated_duration_s(epochs, 1_012.0, 1_026.0) == pytest.approx(2.0 + 3.0)
    assert emulated_duration_s(epochs, 1_026.0, 1_012.0) == 0.0
