"""What chips have done, step by step, against sums by hand and a count that keeps everything."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from emulator.specs.partition import Partition
from emulator.ultraserver.step_cost import ENGINE_NAMES, StepCost
from emulator.units import NS_PER_S
from serving.engine.ledger import Ledger
from serving.wire.machine_snapshot import WINDOW_S

IDLE_WATTS = 100.0
CHIPS, SPARES, TP = 4, 1, 2
HOME = np.arange(CHIPS)
MS = NS_PER_S // 1_000


def partition() -> Partition:
    return Partition(chips=CHIPS, tp=TP, ep=CHIPS, lnc=2, first_chip=0, spares=SPARES)


def facility(chip_watts: float) -> float:
    """A host of 100 W, and a quarter for cooling."""
    return (chip_watts + 100.0) * 1.25


def ledger() -> Ledger:
    return Ledger(partition(), idle_watts=IDLE_WATTS, facility_watts=facility)


def cost(
    duration_ns: int, *, watts: float = 500.0, rank_ns: tuple[int, int] | None = None
) -> StepCost:
    """Every chip does the same, but for how long its rank is busy."""
    each = np.ones(CHIPS)
    return StepCost(
        duration_ns=duration_ns,
        rank_ns=np.array(rank_ns or (duration_ns, duration_ns), dtype=np.int64),
        engine_ns={
            name: np.full(CHIPS, duration_ns // (2 + number), dtype=np.int64)
            for number, name in enumerate(ENGINE_NAMES)
        },
        chip_watts=watts * each,
        chip_joules=watts * CHIPS * duration_ns / NS_PER_S,
        parts_ns={"attention": float(duration_ns)},
        bound={},
        flops=3e12 * each,
        hbm_bytes=2e9 * each,
        link_bytes=np.arange(CHIPS) * 1e6,
        dispatched_bytes=np.arange(CHIPS) * 5e5,
    )


def counted(
    counted_in: Ledger,
    step: StepCost,
    begin_ns: int,
    seats: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = HOME,
) -> int:
    end_ns = begin_ns + step.duration_ns
    counted_in.add_step(step, seats, begin_ns=begin_ns, end_ns=end_ns)
    return end_ns


def test_two_steps_by_hand() -> None:
    counted_in = ledger()
    end_ns = counted(counted_in, cost(10 * MS, rank_ns=(10 * MS, 4 * MS)), 0)
    counted(counted_in, cost(30 * MS, watts=300.0), end_ns)
    totals = counted_in.totals

    assert totals["busy_ns"].tolist() == [40 * MS, 40 * MS, 34 * MS, 34 * MS, 0]
    # 400 W above idle for 10 ms, then 200 W for 30 ms: 4 + 6 J. The spare stands by.
    assert totals.above_idle_joules.tolist() == pytest.approx([10.0] * CHIPS + [0.0])
    assert totals["flops"].tolist() == [6e12] * CHIPS + [0]
    assert totals["hbm_bytes"].tolist() == [4e9] * CHIPS + [0]
    assert totals["link_bytes"].tolist() == [0, 2e6, 4e6, 6e6, 0]
    assert totals["dispatched_bytes"].tolist() == [0, 1e6, 2e6, 3e6, 0]
    tensor = totals.engine_busy_ns[totals.engines.index("tensor")]
    assert tensor.tolist() == [20 * MS] * CHIPS + [0]


def test_a_window_is_of_the_last_seconds_and_falls_to_nothing_while_idle() -> None:
    counted_in = ledger()
    for second in range(10):
        counted(counted_in, cost(250 * MS), second * NS_PER_S)
    window_s, window = counted_in.window(10 * NS_PER_S)
    assert window_s == WINDOW_S
    assert window["busy_ns"][0] == 5 * 250 * MS

    # Two seconds later three of those five steps are in the window still.
    window_s, window = counted_in.window(12 * NS_PER_S)
    assert (window_s, window["busy_ns"][0]) == (WINDOW_S, 3 * 250 * MS)
    window_s, window = counted_in.window(600 * NS_PER_S)
    assert (window_s, window["busy_ns"][0]) == (WINDOW_S, 0)


def test_work_after_a_long_rest_is_told_of_the_last_seconds_alone() -> None:
    counted_in = ledger()
    counted(counted_in, cost(100 * MS), 0)
    begin_ns = 3_600 * NS_PER_S
    end_ns = counted(counted_in, cost(500 * MS), begin_ns)
    window_s, window = counted_in.window(end_ns)

    assert window_s == WINDOW_S
    assert window["busy_ns"][0] == 500 * MS


def test_at_the_start_there_is_no_window() -> None:
    window_s, window = ledger().window(0)
    assert (window_s, window["busy_ns"].sum()) == (0.0, 0.0)


def test_a_spare_that_has_taken_a_seat_works_there() -> None:
    counted_in = ledger()
    end_ns = counted(counted_in, cost(10 * MS), 0)
    counted(counted_in, cost(10 * MS), end_ns, np.array([0, 4, 2, 3]))

    assert counted_in.totals["busy_ns"].tolist() == [20 * MS, 10 * MS, 20 * MS, 20 * MS, 10 * MS]


def test_what_is_spent_beyond_steps_is_in_joules_and_not_in_the_window() -> None:
    counted_in = ledger()
    counted_in.charge(6.0, [1, 2])
    counted_in.charge(10.0)

    assert counted_in.totals.above_idle_joules.tolist() == pytest.approx([2, 5, 5, 2, 2])
    assert counted_in.window(NS_PER_S)[1].above_idle_joules.sum() == 0


@dataclass(frozen=True)
class Step:
    rest_ns: int
    duration_ns: int
    watts: float
    vacant: int | None


steps = st.lists(
    st.builds(
        Step,
        rest_ns=st.sampled_from([0, 0, 5 * MS, 900 * MS, 7 * NS_PER_S]),
        duration_ns=st.integers(1, 3 * NS_PER_S),
        watts=st.floats(IDLE_WATTS, 1_200.0),
        vacant=st.none() | st.integers(0, CHIPS - 1),
    ),
    max_size=30,
)


@example([Step(rest_ns=0, duration_ns=1_048_573, watts=100.0, vacant=None)], 0)
@given(steps, st.integers(0, 20 * NS_PER_S))
def test_totals_never_fall_and_every_joule_is_some_chip_s(each: list[Step], after_ns: int) -> None:
    counted_in = ledger()
    now_ns, joules, busy_ns, log = 0, 0.0, 0.0, []
    before = counted_in.totals
    for step in each:
        seats = HOME.copy()
        if step.vacant is not None:
            seats[step.vacant] = -1
        made = cost(step.duration_ns, watts=step.watts)
        begin_ns = now_ns + step.rest_ns
        now_ns = counted(counted_in, made, begin_ns, seats)
        log.append((begin_ns, now_ns))
        joules += (step.watts - IDLE_WATTS) * CHIPS * step.duration_ns / NS_PER_S
        busy_ns += step.duration_ns * (CHIPS - (step.vacant is not None))
        totals = counted_in.totals
        assert (totals["busy_ns"] >= before["busy_ns"]).all()
        assert (totals.above_idle_joules >= before.above_idle_joules).all()
        before = totals
        assert counted_in.chip_joules(now_ns).sum() == pytest.approx(
            joules + (CHIPS + SPARES) * IDLE_WATTS * now_ns / NS_PER_S
        )
        assert counted_in.facility_joules(now_ns) == pytest.approx(
            1.25 * counted_in.chip_joules(now_ns).sum() + 125.0 * now_ns / NS_PER_S
        )
    assert before.above_idle_joules.sum() == pytest.approx(joules)
    assert before["busy_ns"].sum() == pytest.approx(busy_ns)

    looked_ns = now_ns + after_ns
    window_s, window = counted_in.window(looked_ns)
    assert (window["busy_ns"] <= round(window_s * NS_PER_S)).all()
    # It holds every step that ended in the last seconds, and a step that began before it at most
    # where that one had not ended.
    least_ns = sum(end - begin for begin, end in log if looked_ns - begin <= WINDOW_S * NS_PER_S)
    assert window["busy_ns"].sum() >= least_ns * (CHIPS - 1)


def test_a_lost_chip_draws_nothing_and_the_facility_no_more_than_the_others_bring() -> None:
    counted_in = ledger()
    lost = np.zeros(CHIPS + SPARES, dtype=np.bool_)
    lost[3] = True
    counted_in.lose(lost, 2 * NS_PER_S)
    counted_in.lose(lost, 3 * NS_PER_S)  # no news

    at_ns = 10 * NS_PER_S
    assert counted_in.chip_joules(at_ns).tolist() == [1_000.0, 1_000.0, 1_000.0, 200.0, 1_000.0]
    assert counted_in.facility_joules(at_ns) == pytest.approx(1.25 * 4_200.0 + 125.0 * 10)

    counted_in.lose(np.zeros_like(lost), at_ns)
    at_ns += NS_PER_S
    assert counted_in.chip_joules(at_ns)[3] == 300.0
    assert counted_in.facility_joules(at_ns) == pytest.approx(1.25 * 4_700.0 + 125.0 * 11)


def test_a_step_s_joules_are_its_own_and_a_charge_brings_no_host_again() -> None:
    counted_in = ledger()
    counted(counted_in, cost(10 * MS), 0)
    # Four chips at 500 W and a spare at 100 W, for 10 ms.
    assert counted_in.step_joules == pytest.approx((21.0, 1.25 * 22.0))

    before = counted_in.facility_joules(10 * MS)
    counted_in.charge(80.0)
    assert counted_in.facility_joules(10 * MS) == pytest.approx(before + 1.25 * 80.0)
    with pytest.raises(AssertionError):
        counted_in.charge(-1.0)
