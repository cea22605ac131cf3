"""Steps that are held: the engine answers meanwhile, and time is what it would have been."""

from collections.abc import Callable

import pytest

from emulator.sim.clock import DilatedClock
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.step import RankOutput
from serving.engine.engine_steps import WAIT_WALL_S_MAX
from serving.engine.scheduler_state import RankQueues
from serving.engine.step_report import StepReport
from serving.wire.control_call import (
    DrainRequest,
    FaultReport,
    HealReport,
    HealRequest,
    LeaseReport,
    TelemetryReply,
    TelemetryRequest,
)
from serving.wire.machine_state import ChipHealth, FaultStage, StallState
from tests.serving.plugin.running_engine import Running, heard, lose, prompt_step

K = 20.0
HANG_S = 30.0
BUSY = RankQueues(running=1, waiting=0, kv_blocks_used=1)

Done = tuple[dict[int, RankOutput], StepReport]


class Wall:
    """A wall clock that moves when it is slept on, or when a test says so."""

    def __init__(self) -> None:
        self.ns = 0

    def read(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


class Held:
    """An engine at K wall seconds per emulated second, on a wall of the test's own."""

    def __init__(self, chips: int = 4) -> None:
        self.wall = Wall()
        clock = DilatedClock(K, wall_ns=self.wall.read, sleep_s=self.wall.sleep)
        self.running = Running(clock, chips=chips)
        self.engine = self.running.engine
        self.ranks = chips
        self._count = 0

    def busy(self) -> None:
        """The scheduler has requests on every rank."""
        self.engine.hear(heard(rank_states=(BUSY,) * self.ranks))

    def begin(self, *ranks: int) -> Done | None:
        self._count += 1
        steps = [prompt_step(rank, f"{self._count}-{rank}") for rank in ranks]
        return self.engine.begin(steps, {}, continues=True)

    def until_done(self, done: Done | None) -> Done:
        """Go on as the engine's loop does, until the step has ended."""
        while done is None:
            self.wall.sleep(1.0)
            done = self.engine.go_on()
        return done

    def hang(self, chip: int) -> FaultReport:
        return self.running.inject(Fault(kind=FaultKind.HANG_CHIP, chip=chip))

    def heal(self, chip: int | None = None) -> HealReport:
        reply = self.running.ask(HealRequest(chip=chip))
        assert isinstance(reply, HealReport)
        return reply

    def stall(self) -> StallState | None:
        reply = self.running.ask(TelemetryRequest())
        assert isinstance(reply, TelemetryReply)
        assert self.running.state().stall == reply.telemetry.stall
        return reply.telemetry.stall

    def stages(self) -> list[FaultStage]:
        return [record.stage for record in self.running.state().faults]

    @property
    def wall_s(self) -> float:
        return self.wall.ns / 1e9


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rests here waits for the real wall, which does not move these engines."""
    monkeypatch.setattr("serving.engine.engine_time.time.sleep", lambda _: None)


@pytest.mark.long
def test_a_hung_chip_holds_a_step_for_its_timeout_and_the_engine_answers_meanwhile() -> None:
    held = Held()
    held.until_done(held.begin(0, 1, 2, 3))
    held.busy()
    begun_s = held.running.state().emulated_s
    report = held.hang(2)
    assert report.stall_s >= HANG_S
    assert report.stall_wall_s == pytest.approx(report.stall_s * K)

    assert held.begin(0, 1, 2, 3) is None
    before_s = held.wall_s
    stall = held.stall()
    assert stall is not None
    assert "chip 2 does not answer" in stall.reason
    assert stall.wall_left_s == pytest.approx(HANG_S * K, rel=0.01)
    assert held.stages() == [FaultStage.PENDING]
    assert held.running.state().chips[2].health is ChipHealth.HUNG
    assert held.wall_s == before_s, "no call waits for emulated time"

    held.wall.sleep(HANG_S * K / 2)
    assert held.engine.go_on() is None
    stall = held.stall()
    assert stall is not None
    assert stall.left_s == pytest.approx(HANG_S / 2, rel=0.01)

    outputs, report_of_step = held.until_done(None)
    assert sorted(outputs) == [0, 1, 3]
    assert report_of_step.lost_ranks == (2,)
    assert report_of_step.end_s - begun_s == pytest.approx(HANG_S, rel=0.02)
    assert held.engine.telemetry().lag_s < 0.1, "a hold is no lag of the host"
    assert held.stages() == [FaultStage.RECOVERED]
    assert held.stall() is None


@pytest.mark.long
def test_a_hold_that_is_healed_away_ends_at_once_and_keeps_every_rank() -> None:
    held = Held()
    held.until_done(held.begin(0, 1, 2, 3))
    held.busy()
    begun_s = held.running.state().emulated_s
    held.hang(2)
    assert held.begin(0, 1, 2, 3) is None
    held.wall.sleep(2.0 * K)
    assert held.engine.go_on() is None

    assert held.heal(2).healed == (1,)
    _, report = held.until_done(held.engine.go_on())

    assert report.end_s - begun_s == pytest.approx(2.0, abs=0.5)
    assert held.engine.telemetry().pause_s >= 2.0
    assert held.engine.telemetry().lag_s < 0.5, "what was waited for the chip is a pause"
    assert report.ranks_up == (True,) * 4
    assert held.stages() == [FaultStage.HEALED]
    assert held.stall() is None


@pytest.mark.long
def test_another_chip_is_lost_in_a_hold_and_both_are_met_when_it_ends() -> None:
    held = Held()
    held.busy()
    held.hang(2)
    assert held.begin(0, 1, 2, 3) is None

    assert held.running.inject(lose(1)).number == 2
    assert held.running.state().chips[1].health is ChipHealth.LOST
    assert held.running.state().chips[1].watts == 0.0
    outputs, report = held.until_done(None)

    assert sorted(outputs) == [0, 3]
    assert report.lost_ranks == (1, 2)
    assert held.stages() == [FaultStage.RECOVERED, FaultStage.RECOVERED]


@pytest.mark.long
def test_a_fault_that_is_settled_at_once_leaves_the_hold_and_healing_still_ends_it() -> None:
    held = Held()
    held.busy()
    held.hang(2)
    assert held.begin(0, 1, 2, 3) is None
    slow = Fault(kind=FaultKind.SLOW_CHIP, chip=0, factor=2.0)
    held.running.inject(slow)
    assert held.engine.go_on() is None
    stall = held.stall()
    assert stall is not None
    assert stall.left_s == pytest.approx(HANG_S, rel=0.05)

    held.wall.sleep(K)
    held.heal(2)
    held.until_done(held.engine.go_on())
    assert held.wall_s < 10 * K
    assert held.stages() == [FaultStage.HEALED, FaultStage.DEGRADED]


READING_S = 20.0


@pytest.mark.long
def test_what_else_the_machine_is_held_up_for_stays_when_a_silence_that_a_step_met_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held()
    held.busy()
    held.hang(2)
    steps, looks = held.engine._steps, iter((False, True))  # the silence's end seems near
    monkeypatch.setattr(steps, "_is_far", lambda _: next(looks))
    assert held.begin(0, 1, 2, 3) is None
    monkeypatch.undo()
    held.wall.sleep(5 * K)
    steps.hold(round(READING_S * 1e9))
    held.heal(2)

    stall = held.stall()
    assert stall is not None
    assert stall.left_s == pytest.approx(READING_S, abs=1.0)
    before_s = held.wall_s
    held.until_done(held.engine.go_on())
    assert held.wall_s - before_s < K, "the step itself has only waited for the chip"
    assert held.begin(0, 1, 3) is None
    held.until_done(held.engine.go_on())
    assert held.wall_s - before_s > (READING_S - 1.0) * K, "what is read is not free"


@pytest.mark.long
def test_a_step_s_own_pause_stays_when_a_silence_that_came_after_it_is_over() -> None:
    held = Held()
    held.busy()
    held.engine._steps.hold(round(READING_S * 1e9))
    assert held.begin(0, 1, 2, 3) is None
    held.hang(2)
    held.running.inject(Fault(kind=FaultKind.SLOW_CHIP, chip=0, factor=2.0))  # both are met
    stall = held.stall()
    assert stall is not None
    assert stall.left_s > HANG_S + READING_S - 1.0
    held.heal(2)

    stall = held.stall()
    assert stall is not None
    assert stall.left_s == pytest.approx(READING_S, abs=2.0)
    before_s = held.wall_s
    held.until_done(held.engine.go_on())
    assert held.wall_s - before_s > (READING_S - 1.0) * K


@pytest.mark.long
def test_a_reading_after_a_silence_stays_when_a_step_that_waits_for_both_is_healed() -> None:
    held = Held()
    held.busy()
    held.hang(2)
    held.running.inject(Fault(kind=FaultKind.SLOW_CHIP, chip=0, factor=2.0))
    assert held.begin(0, 1, 2, 3) is None
    held.wall.sleep(5 * K)
    held.engine._steps.hold(round(READING_S * 1e9))
    held.heal(2)

    stall = held.stall()
    assert stall is not None
    assert stall.left_s == pytest.approx(READING_S, abs=2.0)
    before_s = held.wall_s
    held.until_done(held.engine.go_on())
    assert held.wall_s - before_s < 3 * K


def test_chips_can_be_drained_in_a_hold() -> None:
    held = Held()
    held.busy()
    held.hang(2)
    assert held.begin(0, 1, 2, 3) is None

    reply = held.running.ask(DrainRequest(chips=(3,), grace_s=1.0))
    assert isinstance(reply, LeaseReport)
    assert reply.lease is not None
    assert reply.lease.phase == "draining"
    assert held.stages() == [FaultStage.PENDING]


@pytest.mark.long
def test_a_step_that_nobody_waits_for_ends_and_the_machine_stays_held_up() -> None:
    held = Held()
    held.busy()
    held.hang(2)
    assert held.begin(0, 1, 2, 3) is None
    before_s = held.wall_s

    done = held.engine.go_on(abandoned=True)
    assert done is not None
    assert held.wall_s - before_s < 2 * WAIT_WALL_S_MAX
    held.engine.hear(heard())
    stall = held.stall()
    assert stall is not None
    assert stall.left_s == pytest.approx(HANG_S, rel=0.05)
    assert held.stages() == [FaultStage.RECOVERING]

    held.wall.sleep(stall.wall_left_s + 1.0)
    assert held.stall() is None
    assert held.stages() == [FaultStage.RECOVERED]


@pytest.mark.long
def test_a_chip_that_hangs_in_an_idle_engine_is_given_up_when_its_time_is_over() -> None:
    held = Held()
    held.engine.hear(heard())
    held.hang(2)
    assert held.stages() == [FaultStage.PENDING]
    assert held.stall() is not None

    held.wall.sleep(HANG_S * K + 1.0)
    held.running.ask(TelemetryRequest())
    while held.stall() is not None:
        held.wall.sleep(1.0)
    assert held.stages() == [FaultStage.RECOVERED]
    assert held.running.state().emulated_s < HANG_S + 5.0
    assert held.engine.idle_report().lost_ranks == (2,)


@pytest.mark.long
@pytest.mark.parametrize("end", [lambda held: held.heal(2), lambda held: held.heal()])
def test_a_chip_that_hangs_in_an_idle_engine_and_is_healed_holds_nothing_up(
    end: Callable[[Held], HealReport],
) -> None:
    held = Held()
    held.engine.hear(heard())
    held.hang(2)
    held.wall.sleep(K)
    end(held)

    stall = held.stall()
    assert stall is None or stall.left_s < 1.0, "its weights are read again"
    assert held.stages() == [FaultStage.HEALED]


@pytest.mark.long
def test_a_chip_that_is_lost_in_an_idle_engine_is_met_by_the_next_idle_report() -> None:
    held = Held()
    held.engine.hear(heard())
    assert held.running.inject(lose(2)).number == 1
    assert held.running.parts.fleet.live_chips == {0, 1, 2, 3}, "the call itself waits for nothing"

    (stage,) = held.stages()
    assert stage is FaultStage.RECOVERING
    held.wall.sleep(10 * K)
    assert held.stages() == [FaultStage.RECOVERED]
    assert held.engine.idle_report().lost_ranks == (2,)
