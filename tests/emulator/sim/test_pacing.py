from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.sim.clock import Clock, DilatedClock, VirtualClock
from emulator.sim.pacing import PacedStep, StepPacer

MS = 1_000_000


class Host:
    """A wall clock that computing and sleeping move."""

    def __init__(self) -> None:
        self.now_ns = 77 * MS

    def passes(self, wall_ms: float) -> None:
        self.now_ns += round(wall_ms * MS)

    def clock(self, dilation: float) -> DilatedClock:
        return DilatedClock(
            dilation, wall_ns=lambda: self.now_ns, sleep_s=lambda s: self.passes(s * 1e3)
        )


@dataclass(frozen=True)
class Step:
    """What happens on the wall, in ms, and what the step is to take in emulated ms."""

    pause: float  # before the step begins: scheduling, or waiting for work
    continues: bool
    computing: float
    duration: float


def run(pacer: StepPacer, host: Host, step: Step) -> PacedStep:
    host.passes(step.pause)
    begin_ns = pacer.begin_ns(continues=step.continues)
    host.passes(step.computing)
    return pacer.finish(begin_ns, round(step.duration * MS))


IDLE_START = Step(pause=0, continues=False, computing=0, duration=10)


@pytest.mark.parametrize(
    ("dilation", "steps", "expected"),
    [
        # (begin, end, lag) of each step, in emulated ms
        pytest.param(1, [IDLE_START], [(0, 10, 0)], id="one step"),
        pytest.param(
            1,
            [Step(5, False, 3, 10), Step(0, True, 3, 10)],
            [(5, 15, 0), (15, 25, 0)],
            id="an idle engine starts at the present, and then step follows step",
        ),
        pytest.param(
            1,
            [Step(0, False, 3, 10), Step(4, True, 3, 10), Step(4, True, 3, 10)],
            [(0, 10, 0), (10, 20, 0), (20, 30, 0)],
            id="scheduling hides behind the step before",
        ),
        pytest.param(
            1,
            [Step(0, False, 13, 10), Step(0, True, 3, 10)],
            [(0, 13, 3), (13, 23, 0)],
            id="computing that takes too long ends late and the next step starts from there",
        ),
        pytest.param(
            4,
            [Step(0, False, 13, 10), Step(0, True, 60, 10)],
            [(0, 10, 0), (10, 25, 5)],
            id="a lag is in emulated time",
        ),
        pytest.param(
            2,
            [Step(0, False, 0, 10), Step(30, False, 0, 10)],
            [(0, 10, 0), (25, 35, 0)],
            id="after a pause without work the present counts",
        ),
        pytest.param(
            1,
            [Step(0, False, 0, 10), Step(30, True, 0, 10)],
            [(0, 10, 0), (10, 40, 20)],
            id="a pause with work left is a lag",
        ),
        pytest.param(
            1, [Step(0, False, 2, 0)], [(0, 2, 2)], id="a step of no duration still computes"
        ),
    ],
)
def test_steps_by_hand(
    dilation: float, steps: list[Step], expected: list[tuple[float, float, float]]
) -> None:
    host = Host()
    pacer = StepPacer(host.clock(dilation))

    paced = [run(pacer, host, step) for step in steps]

    found = [(step.begin_ns / MS, step.end_ns / MS, step.lag_ns / MS) for step in paced]
    assert found == expected
    assert pacer.lag_ns_total == sum(lag for _, _, lag in expected) * MS
    assert pacer.lagging_steps == sum(lag > 0 for _, _, lag in expected)
    assert pacer.busy_ns_total == sum(step.duration for step in steps) * MS


def test_virtual_time_jumps_from_step_to_step() -> None:
    clock = VirtualClock()
    pacer = StepPacer(clock)

    first = pacer.finish(pacer.begin_ns(continues=False), 10 * MS)
    clock.wait_until_ns(50 * MS)  # the driver waits for its next arrival
    second = pacer.finish(pacer.begin_ns(continues=False), 5 * MS)

    assert (first.begin_ns, first.end_ns) == (0, 10 * MS)
    assert (second.begin_ns, second.end_ns) == (50 * MS, 55 * MS)
    assert clock.now_ns() == 55 * MS
    assert pacer.lag_ns_total == 0


def test_a_pacer_that_is_made_late_starts_at_the_clocks_present() -> None:
    clock = VirtualClock()
    clock.wait_until_ns(30 * MS)

    assert StepPacer(clock).begin_ns(continues=True) == 30 * MS


class EarlyClock(VirtualClock):
    """A clock whose present is a little before what was waited for, as rounding may make it."""

    def now_ns(self) -> int:
        return max(0, super().now_ns() - 1)


def test_a_step_never_begins_before_the_last_one_ended() -> None:
    pacer = StepPacer(EarlyClock())

    first = pacer.finish(pacer.begin_ns(continues=False), 10 * MS)

    assert pacer.begin_ns(continues=False) == first.end_ns == 10 * MS


wall_ms = st.integers(0, 50).map(float)
steps_of_a_run = st.lists(
    st.builds(Step, pause=wall_ms, continues=st.booleans(), computing=wall_ms, duration=wall_ms),
    min_size=1,
    max_size=20,
)


@given(dilation=st.sampled_from([0.0, 0.5, 1.0, 4.0]), steps=steps_of_a_run)
def test_steps_never_overlap_and_every_lag_is_counted(dilation: float, steps: list[Step]) -> None:
    host = Host()
    clock: Clock = host.clock(dilation) if dilation else VirtualClock()
    pacer = StepPacer(clock)

    paced = [run(pacer, host, step) for step in steps]

    end_ns = 0
    for step, one in zip(steps, paced, strict=True):
        assert one.begin_ns >= end_ns
        assert one.begin_ns == end_ns or not step.continues
        assert one.lag_ns >= 0
        assert one.end_ns == one.begin_ns + step.duration * MS + one.lag_ns
        end_ns = one.end_ns
    assert pacer.lag_ns_total == sum(one.lag_ns for one in paced)
    assert pacer.lagging_steps == sum(one.lag_ns > 0 for one in paced)
    assert pacer.busy_ns_total == sum(step.duration for step in steps) * MS
    # Nothing is shown before it has happened on the wall.
    assert clock.now_ns() >= end_ns
    if not dilation:
        assert pacer.lag_ns_total == 0
