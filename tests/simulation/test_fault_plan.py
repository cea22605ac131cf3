from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.fault import FaultKind
from emulator.specs.health import Health
from emulator.specs.partition import Partition
from tests.simulation.fault_plan import FaultEvent, counts_at_rates, plan_faults

HOUR_NS = 3_600 * 10**9
TRAY = Partition(chips=4, ep=4)
CHAOS = dict.fromkeys(FaultKind, 30) | {FaultKind.LOSE_CHIP: 40}


def plan(
    seed: int,
    counts: dict[FaultKind, int] = CHAOS,
    doubles: int = 20,
    duration_ns: int = HOUR_NS,
    partition: Partition = TRAY,
) -> tuple[FaultEvent, ...]:
    return plan_faults(
        seed,
        counts=counts,
        doubles=doubles,
        duration_ns=duration_ns,
        partition=partition,
        system=TRN3_NL72X2,
    )


def test_a_plan_has_the_faults_that_were_asked_for() -> None:
    events = plan(1)

    singles = Counter(event.faults[0].kind for event in events if len(event.faults) == 1)
    assert singles == CHAOS
    assert sum(len(event.faults) == 2 for event in events) == 20
    assert len(events) == 210


def test_the_same_seed_gives_the_same_list_and_another_one_another() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


def test_events_come_in_an_order_by_chance() -> None:
    kinds = [event.faults[0].kind for event in plan(3, doubles=0)]

    assert kinds != sorted(kinds, key=list(FaultKind).index)


def test_chance_reaches_every_chip_stack_and_rack() -> None:
    faults = [
        fault for event in plan(5, partition=Partition(chips=144, ep=144)) for fault in event.faults
    ]

    assert {fault.rack for fault in faults if fault.kind is FaultKind.PULL_SWITCH_TRAY} == {0, 1}
    assert {fault.stack for fault in faults if fault.kind is FaultKind.FAIL_STACK} == {0, 1, 2, 3}
    assert len({fault.chip for fault in faults}) > 72
    assert {fault.chip for event in plan(5) for fault in event.faults} == {-1, 0, 1, 2, 3}


def test_faults_hit_the_partition_and_not_its_spares() -> None:
    spared = plan(5, partition=Partition(chips=4, ep=4, spares=4))

    assert {fault.chip for event in spared for fault in event.faults} == {-1, 0, 1, 2, 3}


def test_the_second_of_a_pair_finds_lanes_to_cut_when_the_first_took_a_whole_tier() -> None:
    pairs = plan(1, {FaultKind.CUT_LINK: 0}, doubles=300, partition=Partition(chips=2, ep=2))

    same_chip = [event.faults for event in pairs if len({f.chip for f in event.faults}) == 1]
    assert any(first.lanes == 0 for first, _ in same_chip)
    assert all(one.tier != other.tier for one, other in same_chip if one.lanes == 0)


def test_a_partition_in_the_second_rack_loses_switch_trays_there() -> None:
    there = Partition(chips=4, ep=4, first_chip=100)
    pulled = plan(2, {FaultKind.PULL_SWITCH_TRAY: 10}, doubles=0, partition=there)

    assert {event.faults[0].rack for event in pulled} == {1}


@given(
    seed=st.integers(0, 2**32),
    chips=st.sampled_from([2, 4, 144]),
    counts=st.dictionaries(st.sampled_from(FaultKind), st.integers(0, 4), min_size=1),
    doubles=st.integers(0, 6),
    spare_ns=st.integers(0, 1_000),
)
def test_every_event_can_happen_to_a_whole_machine_and_ends_before_the_next(
    seed: int, chips: int, counts: dict[FaultKind, int], doubles: int, spare_ns: int
) -> None:
    partition = Partition(chips=chips, ep=chips)
    duration_ns = 2 * (sum(counts.values()) + doubles) + spare_ns

    events = plan(seed, counts, doubles, duration_ns, partition)

    instants = [instant for event in events for instant in (event.at_ns, event.heal_ns)]
    assert all(0 <= instant < duration_ns for instant in instants)
    assert sorted(set(instants)) == instants
    for event in events:
        health = Health.whole(TRN3_NL72X2, partition)
        for fault in event.faults:
            health = health.after(fault, TRN3_NL72X2, partition)
    total = Counter(event.faults[0].kind for event in events if len(event.faults) == 1)
    assert total == Counter(counts) + Counter()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"counts": {FaultKind.LOSE_CHIP: -1}}, "lose-chip=-1: expected at least 0"),
        ({"doubles": -1}, "doubles=-1: expected at least 0"),
        ({"counts": {}}, "doubles=20: expected 0 without kinds to draw from"),
        ({"partition": Partition(chips=1, ep=1)}, "doubles=20: expected 0 on a single chip"),
        ({"duration_ns": 419}, "duration_ns=419: expected at least 420 for the events"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changed: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan(1, **changed)
    assert str(refused.value) == line


def test_a_plan_of_nothing_is_empty() -> None:
    assert plan(1, {}, doubles=0, duration_ns=0) == ()


def test_counts_follow_the_rates() -> None:
    rates = {FaultKind.LOSE_CHIP: 100.0, FaultKind.SLOW_CHIP: 0.0}

    counts = [
        counts_at_rates(seed, rates_per_hour=rates, duration_ns=4 * HOUR_NS) for seed in range(50)
    ]

    lost = [each[FaultKind.LOSE_CHIP] for each in counts]
    assert sum(lost) / len(lost) == pytest.approx(400, rel=0.05)
    assert len(set(lost)) > 10
    assert {each[FaultKind.SLOW_CHIP] for each in counts} == {0}
    assert counts[3] == counts_at_rates(3, rates_per_hour=rates, duration_ns=4 * HOUR_NS)
    with pytest.raises(ConfigError, match="rate of slow-chip=-1"):
        counts_at_rates(0, rates_per_hour={FaultKind.SLOW_CHIP: -1}, duration_ns=1)
