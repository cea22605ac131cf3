"""EngineTime: every emulated nanosecond counted once, every joule at the watts of its time."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.data import SMALL_MOE_DIR
from emulator.sim.clock import Clock, DilatedClock, VirtualClock
from emulator.ultraserver.step_cost import StepCost, StepCostModel
from serving.engine.deployment import resolve_deployment
from serving.engine.engine_time import EngineTime, make_clock
from serving.engine.ledger import Ledger
from serving.engine.step_report import StepReport
from serving.settings import Settings

COST = resolve_deployment(Settings(chips=2), SMALL_MOE_DIR).machine(0.92).cost_model
IDLE_WATTS = 2 * COST.idle_chip_watts
BUDGET_WATTS = 2 * COST.system.chip.budget_watts.value
MS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What the clock and the ledger have counted until the end of a step."""

    dilation: float
    clock_epoch: int
    epoch_emulated_s: float
    emulated_s: float
    steps: int
    busy_s: float
    lag_s: float
    lagging_steps: int
    pause_s: float
    compute_wall_s: float
    chip_joules: float
    facility_joules: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(StepReport):
    snapshot: Totals


class Metered(EngineTime):
    """An engine's time and the ledger that its steps go into, on one machine."""

    def __init__(
        self, clock: Clock, costs: StepCostModel = COST, *, follows_load: bool = False
    ) -> None:
        super().__init__(clock, follows_load=follows_load)
        self.ledger = Ledger(
            costs.partition,
            idle_watts=costs.idle_chip_watts,
            facility_watts=costs.facility_watts,
            start_ns=self.start_ns,
            engines=(),
        )

    def count(self, begin_ns: int, cost: StepCost, *, pause_ns: int, wall_s: float) -> None:
        self.finish(begin_ns, cost.duration_ns, pause_ns=pause_ns, compute_wall_s=wall_s)
        self.ledger.add_step(cost, np.arange(2), begin_ns=begin_ns, end_ns=self.accounted_ns)

    def counted(self) -> Counted:
        report, epoch = self.report(), self.epoch
        return Counted(
            begin_s=report.begin_s,
            end_s=report.end_s,
            epochs=report.epochs,
            snapshot=Totals(
                dilation=self.dilation,
                clock_epoch=epoch.index if epoch else 0,
                epoch_emulated_s=epoch.from_ns / 1e9 if epoch else 0.0,
                emulated_s=self.accounted_ns / 1e9,
                steps=self.steps,
                busy_s=self.busy_ns / 1e9,
                lag_s=self.lag_ns / 1e9,
                lagging_steps=self.lagging_steps,
                pause_s=self.pause_ns / 1e9,
                compute_wall_s=self.compute_wall_s,
                chip_joules=self.ledger.chip_joules(self.accounted_ns).sum(),
                facility_joules=self.ledger.facility_joules(self.accounted_ns),
            ),
        )


def cost(duration_ns: int, watts: float) -> StepCost:
    return StepCost(
        duration_ns=duration_ns,
        rank_ns=np.full(COST.partition.ranks, duration_ns, dtype=np.int64),
        engine_ns={},
        chip_watts=np.array([watts / 4, watts * 3 / 4]),
        chip_joules=watts * duration_ns / 1e9,
        parts_ns={},
        bound={},
        flops=np.zeros(2),
        hbm_bytes=np.zeros(2),
        link_bytes=np.zeros(2),
        dispatched_bytes=np.zeros(2),
    )


def ended(
    time: Metered, begin_ns: int, cost: StepCost, wall_s: float = 0.0, *, pause_ns: int = 0
) -> Counted:
    """The report of a step that ends now, and took `wall_s` to compute."""
    time.count(begin_ns, cost, pause_ns=pause_ns, wall_s=wall_s)
    return time.counted()


def run(
    time: Metered,
    cost: StepCost,
    wall_s: float = 0.0,
    *,
    continues: bool,
    pause_ns: int = 0,
) -> Counted:
    """A step that begins now and is computed in no time."""
    return ended(time, time.begin_ns(continues=continues), cost, wall_s, pause_ns=pause_ns)


class Wall:
    """A wall clock that moves when it is slept on, or told to."""

    def __init__(self) -> None:
        self.now_ns = 7_000_000_000

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def clock(self, dilation: float) -> DilatedClock:
        return DilatedClock(dilation, wall_ns=lambda: self.now_ns, sleep_s=self.sleep)


def facility(joules: float, seconds: float) -> float:
    """Joules at the facility: its watts are a straight line over the chips' from idle on."""
    at_rest = COST.facility_watts(IDLE_WATTS)
    per_watt = (COST.facility_watts(BUDGET_WATTS) - at_rest) / (BUDGET_WATTS - IDLE_WATTS)
    return at_rest * seconds + per_watt * (joules - IDLE_WATTS * seconds)


def test_steps_that_follow_each_other_in_virtual_time_add_up_by_hand() -> None:
    time = Metered(VirtualClock())
    first = run(time, cost(2 * MS, 1000.0), 0.5, continues=False)
    second = run(time, cost(3 * MS, 800.0), 0.25, continues=True)

    assert (first.begin_s, first.end_s) == (0.0, 0.002)
    assert (second.begin_s, second.end_s) == (0.002, 0.005)
    snapshot = second.snapshot
    assert (snapshot.emulated_s, snapshot.busy_s, snapshot.lag_s) == (0.005, 0.005, 0.0)
    assert (snapshot.steps, snapshot.lagging_steps, snapshot.dilation) == (2, 0, 0.0)
    assert snapshot.chip_joules == pytest.approx(2.0 + 2.4)
    assert snapshot.facility_joules == pytest.approx(facility(4.4, 0.005))
    assert snapshot.compute_wall_s == 0.75


def test_a_step_s_joules_are_those_of_its_own_duration_without_any_pause() -> None:
    time = Metered(VirtualClock())
    assert time.ledger.step_joules == (0.0, 0.0)
    run(time, cost(2 * MS, 1000.0), continues=False)
    run(time, cost(3 * MS, 800.0), continues=True, pause_ns=5 * MS)

    assert time.ledger.step_joules == pytest.approx((2.4, COST.facility_watts(800.0) * 0.003))


def test_waiting_for_work_is_counted_at_idle_watts() -> None:
    wall = Wall()
    time = Metered(wall.clock(4.0))
    wall.now_ns += 40 * MS  # 10 ms emulated
    report = run(time, cost(2 * MS, 1000.0), 0.0, continues=False)

    assert (report.begin_s, report.end_s) == (0.010, 0.012)
    assert report.snapshot.busy_s == 0.002
    assert report.snapshot.chip_joules == pytest.approx(0.010 * IDLE_WATTS + 2.0)
    assert wall.now_ns == 7_000_000_000 + 48 * MS  # the step was held until its end


def test_a_busy_engine_hides_the_host_s_time_between_steps() -> None:
    wall = Wall()
    time = Metered(wall.clock(4.0))
    run(time, cost(2 * MS, 1000.0), 0.0, continues=False)
    wall.now_ns += 4 * MS  # 1 ms emulated goes to scheduling
    report = run(time, cost(2 * MS, 1000.0), 0.0, continues=True)

    assert (report.begin_s, report.end_s) == (0.002, 0.004)
    assert report.snapshot.lag_s == 0.0


def test_a_host_that_is_too_slow_makes_lag_that_is_reported_and_drawn_at_idle() -> None:
    wall = Wall()
    time = Metered(wall.clock(4.0))
    begin_ns = time.begin_ns(continues=False)
    wall.now_ns += 20 * MS  # computing took 5 ms emulated, the step is 2 ms long
    report = ended(time, begin_ns, cost(2 * MS, 1000.0), 0.02)

    assert (report.begin_s, report.end_s) == (0.0, 0.005)
    snapshot = report.snapshot
    assert (snapshot.busy_s, snapshot.lag_s, snapshot.lagging_steps) == (0.002, 0.003, 1)
    assert snapshot.chip_joules == pytest.approx(2.0 + 0.003 * IDLE_WATTS)
    assert time.begin_ns(continues=True) == 5 * MS


def test_a_pause_holds_the_step_up_at_idle_watts_and_is_no_busy_time() -> None:
    time = Metered(VirtualClock())
    first = run(time, cost(2 * MS, 1000.0), continues=False, pause_ns=7 * MS)
    second = run(time, cost(3 * MS, 800.0), continues=True)

    assert (first.begin_s, first.end_s) == (0.0, 0.009)
    assert (second.begin_s, second.end_s) == (0.009, 0.012)
    snapshot = second.snapshot
    assert (snapshot.busy_s, snapshot.pause_s) == (pytest.approx(0.005), pytest.approx(0.007))
    assert snapshot.lag_s == 0.0
    assert snapshot.chip_joules == pytest.approx(2.0 + 2.4 + 0.007 * IDLE_WATTS)
    assert snapshot.facility_joules == pytest.approx(facility(snapshot.chip_joules, 0.012))


def test_a_pause_gives_a_slow_host_time_to_compute() -> None:
    wall = Wall()
    time = Metered(wall.clock(4.0))
    begin_ns = time.begin_ns(continues=False)
    wall.now_ns += 20 * MS  # 5 ms emulated
    report = ended(time, begin_ns, cost(2 * MS, 1000.0), pause_ns=4 * MS)

    assert (report.end_s, report.snapshot.lag_s) == (0.006, 0.0)
    assert wall.now_ns == 7_000_000_000 + 24 * MS


def test_a_step_without_work_counts_its_pause_alone() -> None:
    time = Metered(VirtualClock())
    report = run(time, cost(0, IDLE_WATTS), continues=False, pause_ns=5 * MS)

    assert (report.end_s, report.snapshot.busy_s) == (0.005, 0.0)
    assert report.snapshot.chip_joules == pytest.approx(0.005 * IDLE_WATTS)


def test_chips_that_stand_by_draw_idle_watts_all_the_time() -> None:
    deployment = resolve_deployment(Settings(chips=2, spares=3), SMALL_MOE_DIR)
    with_spares = deployment.machine(0.92).cost_model
    plain, more = Metered(VirtualClock()), Metered(VirtualClock(), with_spares)
    reports = [
        run(time, cost(2 * MS, 1000.0), continues=False, pause_ns=MS) for time in (plain, more)
    ]

    alone, beside = (report.snapshot for report in reports)
    spare_watts = 3 * COST.idle_chip_watts
    assert beside.chip_joules == pytest.approx(alone.chip_joules + 0.003 * spare_watts)


def test_a_report_carries_the_ranks_that_were_lost() -> None:
    report = Metered(VirtualClock()).report(lost_ranks=(1,), ranks_up=(True, False))

    assert (report.lost_ranks, report.ranks_up) == ((1,), (True, False))


STEPS = st.lists(
    st.tuples(
        st.integers(1, 50 * MS),  # how long the step is
        st.integers(0, 200 * MS),  # wall ns before it
        st.integers(0, 200 * MS),  # wall ns of computing
        st.floats(IDLE_WATTS, BUDGET_WATTS),  # watts
        st.booleans(),  # whether it continues
        st.just(0) | st.integers(0, 300 * MS),  # how long it was held up
    ),
    max_size=30,
)


@given(steps=STEPS, dilation=st.none() | st.sampled_from([0.5, 1.0, 3.7, 250.0]))
def test_emulated_time_and_joules_are_conserved(
    steps: list[tuple[int, int, int, float, bool, int]], dilation: float | None
) -> None:
    wall = Wall()
    time = Metered(VirtualClock() if dilation is None else wall.clock(dilation))
    reports = [time.counted()]
    busy_joules = 0.0
    for duration_ns, before_ns, computing_ns, watts, continues, pause_ns in steps:
        wall.now_ns += before_ns
        begin_ns = time.begin_ns(continues=continues)
        wall.now_ns += computing_ns
        reports.append(
            ended(time, begin_ns, cost(duration_ns, watts), computing_ns / 1e9, pause_ns=pause_ns)
        )
        busy_joules += watts * duration_ns / 1e9

    last = reports[-1].snapshot
    busy_s = sum(step[0] for step in steps) / 1e9
    assert last.busy_s == pytest.approx(busy_s)
    assert last.pause_s == pytest.approx(sum(step[5] for step in steps) / 1e9)
    assert last.emulated_s == pytest.approx(reports[-1].end_s)
    idle_s = last.emulated_s - busy_s
    assert idle_s >= last.lag_s + last.pause_s - 1e-9
    assert last.chip_joules == pytest.approx(busy_joules + idle_s * IDLE_WATTS)
    assert last.facility_joules == pytest.approx(facility(last.chip_joules, last.emulated_s))
    for before, after in itertools.pairwise(reports):
        assert after.begin_s >= before.end_s
        assert after.end_s > after.begin_s
        for name in ("emulated_s", "busy_s", "lag_s", "chip_joules", "facility_joules", "steps"):
            assert getattr(after.snapshot, name) >= getattr(before.snapshot, name)
    if dilation is None:
        assert last.lag_s == 0.0


@pytest.mark.parametrize("dilation", [1.0, 8.0])
def test_a_wall_reading_is_told_in_emulated_seconds_on_the_report_s_own_scale(
    dilation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = Wall()
    monkeypatch.setattr("time.monotonic", lambda: wall.now_ns / 1e9)
    clock = wall.clock(dilation)
    wall.now_ns += 40 * MS
    time = Metered(clock)
    at_wall_s = wall.now_ns / 1e9
    report = run(time, cost(2 * MS, 1000.0), 0.0, continues=False)

    assert report.at_monotonic_s(at_wall_s) == pytest.approx(0.040 / dilation, abs=1e-6)
    assert report.at_monotonic_s(at_wall_s) == pytest.approx(report.begin_s, abs=1e-6)


def test_a_wall_reading_means_nothing_in_virtual_time() -> None:
    time = Metered(VirtualClock())
    report = run(time, cost(2 * MS, 1000.0), 0.0, continues=False)

    assert report.at_monotonic_s(123.0) == report.begin_s


@pytest.mark.parametrize(
    ("setting", "dilation"), [("real", 1.0), ("dilated:2.5", 2.5), ("auto", 17.0), ("virtual", 0.0)]
)
def test_only_auto_takes_the_calibrated_dilation(setting: str, dilation: float) -> None:
    assert make_clock(setting, 17.0).dilation == dilation


def test_the_user_s_pue_scales_the_facility_and_nothing_else() -> None:
    deployment = resolve_deployment(Settings(chips=2, pue=1.5), SMALL_MOE_DIR)
    given = deployment.machine(0.92).cost_model

    ratio = given.facility_watts(1000.0) / COST.facility_watts(1000.0)
    assert ratio == pytest.approx(1.5 / COST.system.pue.value)
    assert given.provisioned_watts == COST.provisioned_watts
    assert given.idle_chip_watts == COST.idle_chip_watts
    assert deployment.system.pue.source == "given by the user"


def busy(time: Metered, wall: Wall, *, steps: int, computing_ms: float, **how: bool) -> None:
    """Steps of 2 emulated ms that follow each other and take so long to compute."""
    time.keep_pace(how.get("keeps_pace", False))
    for _ in range(steps):
        begin_ns = time.begin_ns(continues=True)
        wall.now_ns += round(computing_ms * MS)
        time.computed()
        wall.now_ns += MS  # waiting elsewhere for the step's end, which is no need
        pause_ns = MS if how.get("pauses") else 0
        time.finish(
            begin_ns,
            2 * MS,
            pause_ns=pause_ns,
            compute_wall_s=computing_ms / 1e3,
        )


def test_a_clock_that_follows_the_load_does_and_tells_its_epochs_in_each_report() -> None:
    wall = Wall()
    time = Metered(wall.clock(1_800.0), follows_load=True)
    first = time.counted()
    busy(time, wall, steps=2_000, computing_ms=20.0)
    last = time.counted()

    assert (first.snapshot.clock_epoch, first.snapshot.dilation) == (0, 1_800.0)
    assert last.snapshot.clock_epoch >= 1
    assert last.snapshot.dilation == pytest.approx(11.5, rel=0.08)
    assert last.epochs is not None
    epoch = last.epochs.last
    assert (epoch.index, epoch.dilation) == (last.snapshot.clock_epoch, last.snapshot.dilation)
    assert last.snapshot.epoch_emulated_s == epoch.from_ns / 1e9
    # A wall reading from before the change is read by the epoch that it lies in.
    assert last.at_monotonic_s(7.0 + 1.8) == pytest.approx(0.001)


def test_a_pace_above_a_hundred_is_a_warning_each_time_it_gets_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warned: list[float] = []

    def warning(words: str, dilation: float) -> None:
        warned.append(dilation)

    monkeypatch.setattr("serving.engine.engine_time.logger.warning", warning)
    wall = Wall()
    time = Metered(wall.clock(1_800.0), follows_load=True)
    assert warned == [1_800.0]
    busy(time, wall, steps=2_000, computing_ms=20.0)
    assert warned == [1_800.0]
    busy(time, wall, steps=2_000, computing_ms=400.0)

    assert len(warned) == 2
    assert time.counted().snapshot.dilation >= warned[1] > 100


@pytest.mark.parametrize("how", [{"keeps_pace": True}, {"pauses": True}])
def test_it_stays_while_a_training_job_goes_by_it_or_faults_hold_the_steps_up(
    how: dict[str, bool],
) -> None:
    wall = Wall()
    time = Metered(wall.clock(100.0), follows_load=True)
    busy(time, wall, steps=1_000, computing_ms=20.0, **how)

    assert time.counted().snapshot.dilation == 100.0


def test_a_clock_that_was_given_never_changes() -> None:
    wall = Wall()
    time = Metered(wall.clock(1_800.0))
    busy(time, wall, steps=100, computing_ms=20.0)

    assert time.counted().snapshot.clock_epoch == 0
    assert time.counted().snapshot.dilation == 1_800.0
