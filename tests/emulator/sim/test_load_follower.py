"""The dilation that follows a load: what it costs, when it changes, and when it stays."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.sim.clock import DilatedClock
from emulator.sim.load_follower import (
    CHANGE_MIN,
    EPOCH_STEPS_MIN,
    EPOCH_WALL_NS_MIN,
    HEADROOM,
    HostPace,
    HostStep,
    LoadFollower,
    paced_dilation,
)
from emulator.sim.pacing import StepPacer

MS, S = 1_000_000, 1_000_000_000
MORE = 1.0 + HEADROOM


@pytest.mark.parametrize(
    ("need_ms", "emulated_ms", "expected"),
    [
        pytest.param([20, 20], [2, 2], 10 * MORE, id="equal steps: the ratio and the head-room"),
        pytest.param([20], [2], 10 * MORE, id="one step"),
        # At 20 the first waits 10 ms; 15 % of 110 ms are 16.5: (126.5 - 100) / 1.
        pytest.param([10, 100], [1, 1], 26.5, id="a long step may be late where short ones wait"),
        pytest.param([100, 10], [1, 1], 26.5, id="whatever their order"),
    ],
)
def test_the_dilation_by_hand(
    need_ms: list[float], emulated_ms: list[float], expected: float
) -> None:
    assert HEADROOM == 0.15  # what the numbers above were computed with
    found = paced_dilation(np.array(need_ms) * MS, np.array(emulated_ms) * MS)
    assert found == pytest.approx(expected)


TIMES = st.floats(0.01, 10_000.0)


@pytest.mark.long
@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=40))
def test_waiting_makes_the_steps_longer_by_the_head_room_exactly(
    steps: list[tuple[float, float]],
) -> None:
    need, emulated = (np.array(column) for column in zip(*steps, strict=True))

    dilation = paced_dilation(need, emulated)

    assert np.maximum(dilation * emulated, need).sum() == pytest.approx(MORE * need.sum())


class Run:
    """Steps on a host of known slowness, paced by a clock that follows them."""

    def __init__(self, dilation: float) -> None:
        self.wall_ns = 50 * S
        self.clock = DilatedClock(dilation, wall_ns=lambda: self.wall_ns, sleep_s=self.sleep)
        self.pacer = StepPacer(self.clock)
        self.pace = HostPace(self.clock)
        self.changes = 0

    def sleep(self, seconds: float) -> None:
        self.wall_ns += round(seconds * S)

    def step(
        self, need_ms: float, emulated_ms: float, *, continues: bool = True, told: bool = True
    ) -> None:
        self.pace.begin(continues=continues)
        begin_ns = self.pacer.begin_ns(continues=continues)
        self.wall_ns += round(need_ms * MS)
        self.pace.computed()
        emulated_ns = round(emulated_ms * MS)
        self.pacer.finish(begin_ns, emulated_ns)
        self.changes += self.pace.released(emulated_ns if told else None, may_change=True)

    def settle(self, need_ms: float, emulated_ms: float) -> None:
        """Steps of one kind for half a minute, and at least 30."""
        until_ns, steps = self.wall_ns + 30 * S, 0
        while self.wall_ns < until_ns or steps < 30:
            self.step(need_ms, emulated_ms)
            steps += 1

    def wall_s_of(self, steps: int, need_ms: float, emulated_ms: float) -> float:
        begun_ns = self.wall_ns
        for _ in range(steps):
            self.step(need_ms, emulated_ms)
        return (self.wall_ns - begun_ns) / S


@pytest.mark.parametrize("first", [1.0, 11.0, 1_800.0])
@pytest.mark.parametrize(("need_ms", "emulated_ms"), [(2.0, 1.7), (500.0, 2.0), (20.0, 5.0)])
def test_a_steady_load_gets_four_fifths_of_what_the_host_can_do_whatever_it_began_with(
    first: float, need_ms: float, emulated_ms: float
) -> None:
    run = Run(first)
    run.settle(need_ms, emulated_ms)
    lag_ns = run.pacer.lag_ns_total

    took_s = run.wall_s_of(100, need_ms, emulated_ms)

    assert 100 * need_ms / 1e3 <= took_s <= 100 * need_ms / 1e3 / 0.8
    assert run.pacer.lag_ns_total == lag_ns  # no step is late any more
    assert run.changes <= 2


@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0])
def test_a_host_whose_times_vary_gets_four_fifths_too(spread: float) -> None:
    chance = np.random.default_rng(3)
    run = Run(100.0)
    need_ms = 30.0 * np.exp(spread * chance.standard_normal(4_000))
    for each in need_ms[:2_000]:
        run.step(float(each), 2.0)
    begun_ns = run.wall_ns

    for each in need_ms[2_000:]:
        run.step(float(each), 2.0)

    took_s = (run.wall_ns - begun_ns) / S
    assert took_s <= need_ms[2_000:].sum() / 1e3 / 0.8


def test_the_machine_is_never_quicker_than_real_time() -> None:
    run = Run(5.0)
    run.settle(0.5, 10.0)

    assert run.clock.dilation == 1.0
    assert run.wall_s_of(100, 0.5, 10.0) == pytest.approx(1.0)


def test_a_load_that_changes_is_followed_up_and_down() -> None:
    run = Run(10.0)
    run.settle(20.0, 2.0)
    few = run.clock.dilation
    run.settle(100.0, 2.5)
    many = run.clock.dilation
    run.settle(20.0, 2.0)

    assert few == pytest.approx(10 * MORE, rel=CHANGE_MIN - 1)
    assert many == pytest.approx(40 * MORE, rel=CHANGE_MIN - 1)
    assert run.clock.dilation == pytest.approx(few, rel=CHANGE_MIN - 1)


def test_idle_time_and_steps_that_tell_nothing_change_nothing() -> None:
    run = Run(10.0)
    run.settle(20.0, 2.0)
    dilation = run.clock.dilation

    run.wall_ns += 3_600 * S
    for _ in range(200):
        run.step(900.0, 2.0, told=False)
    run.wall_ns += 3_600 * S
    run.step(20.0, 2.0, continues=False)

    assert run.clock.dilation == dilation


def test_a_step_that_was_waited_for_elsewhere_needed_what_it_was_computed_in() -> None:
    run = Run(100.0)
    for _ in range(1_000):
        run.pace.begin(continues=True)
        run.wall_ns += 20 * MS
        run.pace.computed()
        until_ns = run.clock.epochs.wall_ns(run.pacer.begin_ns(continues=True) + 2 * MS)
        run.wall_ns = max(run.wall_ns, until_ns - 5 * MS)
        run.pacer.finish(run.pacer.begin_ns(continues=True), 2 * MS)
        run.pace.released(2 * MS, may_change=True)

    assert run.clock.dilation == pytest.approx(10 * MORE, rel=CHANGE_MIN - 1)


def test_a_step_of_which_nothing_said_when_it_was_computed_tells_nothing() -> None:
    run = Run(100.0)
    for _ in range(1_000):
        run.pace.begin(continues=True)
        run.wall_ns += 20 * MS
        assert not run.pace.released(2 * MS, may_change=True)


def test_the_need_of_a_step_that_continues_begins_when_the_last_one_was_released() -> None:
    run = Run(1.0)
    for _ in range(40):
        run.wall_ns += 60 * MS  # scheduling, before the step is begun
        run.step(40.0, 2.0)

    assert run.clock.dilation == pytest.approx(50 * MORE, rel=0.01)


def test_time_goes_on_from_where_it_is_when_the_dilation_changes() -> None:
    run = Run(100.0)
    ends = []
    for _ in range(100):
        run.step(20.0, 2.0)
        ends.append((run.wall_ns, run.clock.now_ns()))

    assert run.changes >= 1
    for (wall_a, now_a), (wall_b, now_b) in itertools.pairwise(ends):
        assert 0 < now_b - now_a <= wall_b - wall_a
    assert run.clock.epochs.emulated_ns(ends[0][0]) == ends[0][1]


NEEDS = st.lists(st.tuples(st.floats(0.1, 900.0), st.floats(0.1, 50.0)), min_size=1, max_size=300)


@given(first=st.floats(1.0, 2_000.0), steps=NEEDS)
def test_changes_lie_apart_and_are_worth_it(first: float, steps: list[tuple[float, float]]) -> None:
    follower, dilation, wall_ns = LoadFollower(began_wall_ns=0), first, 0
    changes = [(0, first, 0)]
    for number, (need_ms, emulated_ms) in enumerate(steps, start=1):
        wall_ns += round(max(need_ms, dilation * emulated_ms) * MS)
        follower.add(
            HostStep(
                at_wall_ns=wall_ns,
                need_wall_ns=round(need_ms * MS),
                emulated_ns=round(emulated_ms * MS),
            )
        )
        proposal = follower.proposal(dilation, wall_ns)
        if proposal is not None:
            dilation = proposal
            changes.append((wall_ns, dilation, number))

    for (wall_a, before, number_a), (wall_b, after, number_b) in itertools.pairwise(changes):
        assert wall_b - wall_a >= EPOCH_WALL_NS_MIN
        assert number_b - number_a >= EPOCH_STEPS_MIN
        assert max(after / before, before / after) >= CHANGE_MIN
        assert after >= 1.0
