"""Epochs as they come with snapshots, and durations over them."""

import pytest

from serving.telemetry.clock_epochs import ClockEpochs, emulated_duration_s
from tests.serving.telemetry.snapshots import snapshot


def test_epochs_are_gathered_once_each_and_convert_what_lies_over_several() -> None:
    clock = ClockEpochs()
    assert clock.map is None
    first = snapshot(dilation=4.0, clock_epoch=0, epoch_emulated_s=0.0, epoch_unix_s=1_000.0)
    second = snapshot(dilation=2.0, clock_epoch=1, epoch_emulated_s=5.0, epoch_unix_s=1_020.0)

    for each in (first, first, second, first, second):
        clock.take(each)

    assert clock.map is not None
    assert [each.index for each in clock.map.epochs] == [0, 1]
    assert emulated_duration_s(clock.map, 1_012.0, 1_016.0) == pytest.approx(1.0)
    assert emulated_duration_s(clock.map, 1_012.0, 1_026.0) == pytest.approx(2.0 + 3.0)
    assert emulated_duration_s(clock.map, 1_026.0, 1_012.0) == 0.0


def test_virtual_time_has_no_epochs() -> None:
    clock = ClockEpochs()
    clock.take(snapshot(dilation=0.0))
    assert clock.map is None
