from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.specs.health import TIERS, Health
from emulator.specs.partition import Partition

PARTITION = Partition(chips=4, ep=4, spares=1)
WHOLE = Health.whole(TRN3_NL72X2, PARTITION)


def after(*faults: Fault, health: Health = WHOLE) -> Health:
    for fault in faults:
        health = health.after(fault, TRN3_NL72X2, PARTITION)
    return health


def fault(kind: FaultKind, chip: int = 1, **rest: object) -> Fault:
    return Fault(kind=kind, chip=chip, **rest)


def fields(health: Health) -> list[list[object]]:
    return [
        getattr(health, name).tolist()
        for name in (
            "lost",
            "hung",
            "failed_stacks",
            "slow_factor",
            "lanes_down",
            "switch_trays_out",
            "lent",
        )
    ]


LOSE, HANG = fault(FaultKind.LOSE_CHIP), fault(FaultKind.HANG_CHIP)
SLOW = fault(FaultKind.SLOW_CHIP, factor=2.5)
STACK = fault(FaultKind.FAIL_STACK, stack=3)
CUT = fault(FaultKind.CUT_LINK, tier=LinkTier.BACKPLANE, lanes=7)
PULL = Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=1)


@pytest.mark.parametrize(
    ("happened", "state"),
    [(LOSE, "lost"), (HANG, "hung"), (STACK, "HBM stack 3 failed")],
    ids=["lost", "hung", "stack"],
)
def test_a_chip_that_cannot_compute_is_out_of_service(happened: Fault, state: str) -> None:
    health = after(happened)

    assert health.in_service.tolist() == [True, False, True, True, True]
    assert [health.state_of(0), health.state_of(1)] == ["up", state]


@pytest.mark.parametrize("happened", [SLOW, CUT, PULL], ids=["slow", "cut", "pulled"])
def test_slow_chips_and_cut_links_leave_chips_in_service(happened: Fault) -> None:
    assert after(happened).in_service.all()


def test_each_fault_marks_its_own_field() -> None:
    health = after(SLOW, CUT, PULL, PULL)

    assert health.slow_factor.tolist() == [1, 2.5, 1, 1, 1]
    assert health.state_of(1) == "slow x2.5"
    assert health.lanes_down[1].tolist() == [0, 7, 0]
    assert health.lanes_down.sum() == 7
    assert health.switch_trays_out.tolist() == [0, 2]
    assert after(STACK).failed_stacks[1].tolist() == [False, False, False, True]


def test_no_lane_count_means_all_that_are_left() -> None:
    cut_all = fault(FaultKind.CUT_LINK, tier=LinkTier.BACKPLANE)

    assert after(cut_all).lanes_down[1, 1] == 80
    assert after(CUT, cut_all).lanes_down[1, 1] == 80


def test_a_slow_chip_takes_the_factor_that_came_last() -> None:
    assert after(SLOW, fault(FaultKind.SLOW_CHIP, factor=1.5)).slow_factor[1] == 1.5


@pytest.mark.parametrize(
    ("before", "happened", "line"),
    [
        (
            (),
            fault(FaultKind.LOSE_CHIP, chip=5),
            "chip=5: expected 0 to 4, of the partition's 4",
        ),
        ((), fault(FaultKind.FAIL_STACK, stack=4), "stack=4: expected 0 to 3"),
        ((), fault(FaultKind.CUT_LINK, tier=LinkTier.TRAY, lanes=65), "lanes=65: expected at most"),
        ((CUT,), fault(FaultKind.CUT_LINK, tier=LinkTier.BACKPLANE, lanes=74), "at most 73"),
        ((), Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=2), "rack=2: expected 0 to 1"),
        ((PULL,) * 10, PULL, "rack=1: expected a rack with a switch tray left; all 10"),
        ((LOSE,), SLOW, "chip=1: expected a chip in service; it is lost"),
        ((HANG,), LOSE, "it is hung"),
        ((STACK,), STACK, "it is HBM stack 3 failed"),
    ],
)
def test_a_fault_on_what_is_not_there_is_refused(
    before: Sequence[Fault], happened: Fault, line: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        after(happened, health=after(*before))
    assert line in str(refused.value)


def test_the_lanes_that_are_all_cut_cannot_be_cut_again() -> None:
    cut_all = fault(FaultKind.CUT_LINK, tier=LinkTier.CROSS_RACK)

    with pytest.raises(ConfigError, match="at most 0"):
        after(cut_all, cut_all)


def test_a_repair_mends_one_chip_and_no_switch_tray() -> None:
    other = fault(FaultKind.LOSE_CHIP, chip=2)
    health = after(SLOW, CUT, STACK, PULL, other).healed(1)

    assert fields(health) == fields(after(PULL, other))


def test_a_chip_that_does_not_exist_cannot_be_repaired() -> None:
    for chip in (-1, 5):
        with pytest.raises(ConfigError, match="one of the machine's 5 chips"):
            WHOLE.healed(chip)


FAULTS = st.one_of(
    st.builds(
        fault,
        st.sampled_from([FaultKind.LOSE_CHIP, FaultKind.HANG_CHIP, FaultKind.SLOW_CHIP]),
        st.integers(0, 4),
        factor=st.just(2.0),
    ),
    st.builds(fault, st.just(FaultKind.FAIL_STACK), st.integers(0, 4), stack=st.integers(0, 3)),
    st.builds(
        fault,
        st.just(FaultKind.CUT_LINK),
        st.integers(0, 4),
        tier=st.sampled_from(TIERS),
        lanes=st.integers(0, 90),
    ),
    st.builds(Fault, kind=st.just(FaultKind.PULL_SWITCH_TRAY), rack=st.integers(0, 2)),
)


@given(faults=st.lists(FAULTS, max_size=12))
def test_whatever_happens_everything_can_be_repaired_and_nothing_old_changes(
    faults: list[Fault],
) -> None:
    states = [WHOLE]
    for happened in faults:
        was = fields(states[-1])
        try:
            states.append(after(happened, health=states[-1]))
        except ConfigError:
            continue
        assert fields(states[-2]) == was
        assert fields(states[-1]) != was or happened.kind is FaultKind.SLOW_CHIP
        assert (states[-1].lanes_down <= np.array([64, 80, 16])).all()
        assert (states[-1].switch_trays_out <= 10).all()

    assert fields(states[-1].healed()) == fields(WHOLE)


def test_a_chip_that_is_lent_out_works_for_somebody_else() -> None:
    health = WHOLE.lending([1, 3])

    assert health.in_service.tolist() == [True, False, True, False, True]
    assert health.works.all()
    assert [health.state_of(0), health.state_of(1)] == ["up", "lent out"]
    assert fields(health.returning([1, 3])) == fields(WHOLE)


def test_a_lent_chip_can_fail_and_does_not_come_back_until_it_is_repaired() -> None:
    lost = after(LOSE, health=WHOLE.lending([1]))

    assert lost.state_of(1) == "lost"
    assert not lost.returning([1]).in_service[1]
    repaired = lost.healed(1)
    assert repaired.lent.tolist() == [False, True, False, False, False]
    assert repaired.returning([1]).in_service.all()
