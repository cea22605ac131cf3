"""Emulated time by epochs is a rising, unbroken function of the wall, and can be read backwards."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.sim.epochs import EPOCHS_KEPT, EpochMap

S = 1_000_000_000

DILATIONS = st.floats(0.01, 5_000.0)
CHANGES = st.lists(st.tuples(st.integers(0, 100 * S), DILATIONS), max_size=EPOCHS_KEPT - 1)


def built(first: float, changes: list[tuple[int, float]]) -> EpochMap:
    """Epochs that begin so many wall ns one after another, from wall time 7 s on."""
    epochs, wall_ns = EpochMap.at(now_ns=0, wall_ns=7 * S, dilation=first), 7 * S
    for after_ns, dilation in changes:
        wall_ns += after_ns
        epochs = epochs.changed(dilation, wall_ns=wall_ns)
    return epochs


def test_epochs_by_hand() -> None:
    epochs = built(4.0, [(8 * S, 2.0), (2 * S, 10.0)])

    # 8 wall s at 4 are 2 emulated, 2 at 2 are 1 more, 5 at 10 half a second.
    assert [each.from_ns for each in epochs.epochs] == [0, 2 * S, 3 * S]
    assert [each.index for each in epochs.epochs] == [0, 1, 2]
    assert epochs.emulated_ns(11 * S) == 1 * S
    assert epochs.emulated_ns(16 * S) == 2 * S + S // 2
    assert epochs.emulated_ns(22 * S) == 3 * S + S // 2
    assert epochs.emulated_s(22.0) == 3.5
    assert [epochs.wall_ns(t) for t in (S, 2 * S + S // 2, 4 * S)] == [11 * S, 16 * S, 27 * S]
    assert epochs.emulated_ns(3 * S) == -1 * S  # before the first, by its rate


def test_the_oldest_epochs_are_forgotten_and_the_present_is_not() -> None:
    epochs = built(2.0, [(S, 2.0 + number) for number in range(3 * EPOCHS_KEPT)])

    assert len(epochs.epochs) == EPOCHS_KEPT
    assert epochs.last.index == 3 * EPOCHS_KEPT
    assert [e.index for e in epochs.epochs] == list(range(2 * EPOCHS_KEPT + 1, 3 * EPOCHS_KEPT + 1))


@pytest.mark.parametrize("dilation", [0.0, -1.0, float("inf"), float("nan")])
def test_a_dilation_is_a_number_above_zero(dilation: float) -> None:
    with pytest.raises(ConfigError, match="dilation="):
        built(1.0, []).changed(dilation, wall_ns=8 * S)


@given(first=DILATIONS, changes=CHANGES, walls=st.lists(st.integers(0, 10_000 * S), min_size=2))
def test_time_never_falls(first: float, changes: list[tuple[int, float]], walls: list[int]) -> None:
    epochs = built(first, changes)

    read = [epochs.emulated_ns(wall_ns) for wall_ns in sorted(walls)]

    assert read == sorted(read)


@given(first=DILATIONS, changes=CHANGES)
def test_a_change_is_no_jump(first: float, changes: list[tuple[int, float]]) -> None:
    epochs = built(first, changes)

    for before, after in itertools.pairwise(epochs.epochs):
        at = after.from_wall_ns
        passed = (at - before.from_wall_ns) / before.dilation
        assert abs(after.from_ns - before.from_ns - passed) <= 1 + 1e-6 * passed
        fastest = 1 / min(each.dilation for each in epochs.epochs)
        assert abs(epochs.emulated_ns(at) - epochs.emulated_ns(at - 1)) <= 2 + fastest


@given(first=DILATIONS, changes=CHANGES, emulated_ns=st.integers(0, 10_000 * S))
def test_the_wall_of_an_emulated_time_has_that_time(
    first: float, changes: list[tuple[int, float]], emulated_ns: int
) -> None:
    epochs = built(first, changes)

    found = epochs.emulated_ns(epochs.wall_ns(emulated_ns))

    assert abs(found - emulated_ns) <= 3 + 3 / min(e.dilation for e in epochs.epochs)


def test_a_duration_is_converted_by_each_epoch_that_it_lies_in() -> None:
    first = EpochMap.at(now_ns=0, wall_ns=1_000 * 10**9, dilation=4.0)
    epochs = first.changed(2.0, wall_ns=1_020 * 10**9)

    assert epochs.emulated_duration_s(1_012.0, 1_016.0) == pytest.approx(1.0)
    assert epochs.emulated_duration_s(1_012.0, 1_026.0) == pytest.approx(2.0 + 3.0)
    assert epochs.emulated_duration_s(1_026.0, 1_012.0) == 0.0
