"""Chips that are lost at the worst moments: while experts move, chips start, faults are repaired.

Their processes are really killed or stopped; only the moment is chosen.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psutil
import pytest

from emulator.actors import chip_processes
from emulator.actors.chip_processes import ChipProcesses
from emulator.chip.commands import TakeExperts
from emulator.fleet import Fleet
from emulator.specs.fault import Fault, FaultKind, LinkTier
from serving.wire.control_call import FaultReport, HealRequest, InjectRequest
from serving.wire.machine_state import FaultRecord, FaultStage
from tests.emulator.held_step import when_all_answered
from tests.simulation.chaos import Chaos
from tests.simulation.invariants import check_memories
from tests.simulation.troubled_engine import TroubledEngine, running_engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SETTINGS = {
    "chips": 4,
    "spares": 2,
    "eplb": {
        "num_redundant_experts": 48,
        "step_interval": 12,
        "window_size": 24,
        "use_async": False,
    },
}
TURNS_MAX = 300


@pytest.fixture(scope="module")
def chaos() -> Iterator[Chaos]:
    with running_engine(SETTINGS) as engine:
        chaos = Chaos(engine, seed=7, arrivals_per_step=1.2)
        chaos.take_reference()
        yield chaos


@pytest.fixture
def engine(chaos: Chaos) -> Iterator[TroubledEngine]:
    """The engine under load; repaired afterwards, it serves as before."""
    serve(chaos, turns=3)
    yield chaos.engine
    chaos.drain()
    check_memories(chaos.engine, [0, 1, 2, 3])
    chaos.engine.control(HealRequest())
    serve(chaos, turns=3)
    chaos.drain()
    check_memories(chaos.engine, [0, 1, 2, 3])
    assert chaos.engine.machine.chips_up.all()
    assert chaos.engine.machine.ranks_up.all()


def serve(chaos: Chaos, *, turns: int) -> None:
    chaos.arrive(12)
    for _ in range(turns):
        chaos.turn()


def end_process(engine: TroubledEngine, position: int) -> None:
    process = engine.processes()[position]
    process.kill()
    psutil.wait_procs([process], timeout=10)


def chip_at(engine: TroubledEngine, position: int) -> int:
    """Spares stay where they took seats."""
    return int(engine.machine.seating.chip_of_position[position])


def lose(engine: TroubledEngine, chip: int) -> None:
    report = engine.control(InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=chip)))
    assert isinstance(report, FaultReport)
    assert report.survivable


def records(
    engine: TroubledEngine, count: int, stage: FaultStage = FaultStage.RECOVERED
) -> tuple[FaultRecord, ...]:
    """The last `count` faults, all of which are at that stage."""
    last = engine.live_machine.faults.records[-count:]
    assert {record.stage for record in last} == {stage}
    return last


def once(happen: Callable[[Any], None]) -> Callable[[Any], None]:
    """`happen` at the first call alone."""
    happened: list[bool] = []

    def at_first(argument: Any) -> None:
        if not happened:
            happened.append(True)
            happen(argument)

    return at_first


def test_a_chip_dies_while_experts_move(
    chaos: Chaos, engine: TroubledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = len(engine.live_machine.faults)
    tell = Fleet._tell
    kill = once(lambda position: end_process(engine, position))

    def told(fleet: Fleet, commands: Mapping[int, Any]) -> Any:
        if any(isinstance(command, TakeExperts) for command in commands.values()):
            kill(max(commands))
        return tell(fleet, commands)

    monkeypatch.setattr(Fleet, "_tell", told)
    for _ in range(TURNS_MAX):
        chaos.turn()
        if len(engine.live_machine.faults) > faults:
            break
    monkeypatch.undo()

    records(engine, 1)
    check_memories(engine, [0, 1, 2, 3])


def test_a_chip_dies_when_every_layer_is_computed_and_nobody_takes_its_seat(
    chaos: Chaos, engine: TroubledEngine
) -> None:
    for standby in engine.machine.seating.standby(engine.machine.health).tolist():
        lose(engine, standby)
    last = engine.fleet.architecture.layers - 1
    with when_all_answered(engine.fleet, last, lambda: end_process(engine, 0)):
        serve(chaos, turns=3)

    assert engine.machine.chips_up.sum() == 3
    records(engine, 3)


def test_a_chip_that_stood_by_dies_while_it_starts_and_the_next_one_comes(
    chaos: Chaos, engine: TroubledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_loaded = ChipProcesses._wait_loaded
    kill = once(lambda processes: processes.kill(0))

    def loaded(processes: ChipProcesses, chips: Any) -> None:
        wait_loaded(processes, chips)
        kill(processes)

    monkeypatch.setattr(ChipProcesses, "_wait_loaded", loaded)
    monkeypatch.setattr(chip_processes, "CONNECT_TIMEOUT_S", 3.0)
    chip, standby = chip_at(engine, 0), set(engine.machine.seating.standby(engine.machine.health))
    lose(engine, chip)
    serve(chaos, turns=3)

    lost, stood_by = records(engine, 2)
    assert lost.fault.chip == chip
    assert {stood_by.fault.chip, chip_at(engine, 0)} == standby


def test_a_chip_is_to_hang_that_has_just_died(chaos: Chaos, engine: TroubledEngine) -> None:
    """It is lost, whatever was asked for."""
    chip = chip_at(engine, 1)
    end_process(engine, 1)

    engine.control(InjectRequest(fault=Fault(kind=FaultKind.HANG_CHIP, chip=chip)))
    serve(chaos, turns=3)

    (record,) = records(engine, 1)
    assert record.fault == Fault(kind=FaultKind.LOSE_CHIP, chip=chip)


def test_chips_die_while_others_are_repaired(chaos: Chaos, engine: TroubledEngine) -> None:
    chip = chip_at(engine, 0)
    lose(engine, chip_at(engine, 2))
    serve(chaos, turns=3)
    end_process(engine, 0)

    engine.control(HealRequest())
    serve(chaos, turns=3)

    (found,) = records(engine, 1, FaultStage.HEALED)  # by the heal itself
    assert found.fault == Fault(kind=FaultKind.LOSE_CHIP, chip=chip)
    assert found.recovery is not None
    assert found.recovery.requests_moved > 0


def test_a_process_that_really_stops_answering_is_given_up(
    chaos: Chaos, engine: TroubledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.fleet._watch, "silence_timeout_s", 4.0)
    chip = chip_at(engine, 1)
    engine.processes()[1].suspend()
    started_s = time.monotonic()

    serve(chaos, turns=3)

    assert time.monotonic() - started_s < 30
    assert records(engine, 1)[0].fault == Fault(kind=FaultKind.HANG_CHIP, chip=chip)


def test_requests_that_move_are_counted_also_when_no_step_met_the_fault(
    chaos: Chaos, engine: TroubledEngine
) -> None:
    before = engine.scheduler._moved_requests
    chip = chip_at(engine, 1)
    for tier in LinkTier:
        engine.control(InjectRequest(fault=Fault(kind=FaultKind.CUT_LINK, chip=chip, tier=tier)))

    serve(chaos, turns=3)

    moved = engine.scheduler._moved_requests - before
    assert moved > 0
    recoveries = [record.recovery for record in records(engine, len(LinkTier))]
    counts = [recovery.requests_moved for recovery in recoveries if recovery is not None]
    assert sorted(counts) == [0, 0, moved]  # by the cut that left the chip alone
