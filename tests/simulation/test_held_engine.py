"""An engine at 20 wall seconds per emulated second whose chips fall silent: it answers all along.

The chips are processes, and vLLM's schedulers and engine core are its own.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from emulator.specs.fault import Fault, FaultKind
from serving.wire.control_call import (
    DrainRequest,
    FaultReport,
    HealReport,
    HealRequest,
    InjectRequest,
    LeaseReport,
    ResumeRequest,
    StateReply,
    StateRequest,
    TelemetryReply,
    TelemetryRequest,
)
from serving.wire.machine_state import ChipHealth, FaultRecord, FaultStage, MachineState
from tests.simulation.asks import Ask, make_asks
from tests.simulation.troubled_engine import TroubledEngine, running_engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

K = 20
HANG_S = 30.0
ANSWER_WALL_S = 2.0
SILENCE_WALL_S = 2.0
ASKS = make_asks(3)[:6]

Texts = dict[str, tuple[int, ...]]


@pytest.fixture(scope="module")
def engine() -> Iterator[TroubledEngine]:
    settings: dict[str, Any] = {
        "chips": 4,
        "clock": f"dilated:{K}",
        "hang_timeout_s": HANG_S,
        "silence_timeout_s": SILENCE_WALL_S,
    }
    with running_engine(settings) as engine:
        yield engine


@pytest.fixture
def right(engine: TroubledEngine) -> Texts:
    """What the requests answer on a machine that is whole."""
    engine.control(HealRequest())
    return serve(engine, "quiet")


def add(engine: TroubledEngine, run: str, asks: Sequence[Ask] = ASKS) -> None:
    for number, ask in enumerate(asks):
        engine.add(f"{run}/{number}", ask, priority=0)


def step(engine: TroubledEngine, texts: Texts) -> None:
    for output in engine.step():
        name = output.request_id.partition("/")[2]
        texts[name] = tuple(output.outputs[0].token_ids)


def drain(engine: TroubledEngine, texts: Texts, *, within_s: float = 60.0) -> Texts:
    end_s = time.monotonic() + within_s
    while engine._engine.has_unfinished_requests() or not engine.is_idle():
        step(engine, texts)
        assert time.monotonic() < end_s, "it does not end"
    return texts


def serve(engine: TroubledEngine, run: str) -> Texts:
    add(engine, run)
    return drain(engine, {})


def asked(engine: TroubledEngine, request: Any) -> Any:
    """As the control service asks: the answer comes between two turns of the engine's loop."""
    began_s = time.monotonic()
    step(engine, {}) if engine._engine.has_unfinished_requests() else None
    reply = engine.control(request)
    assert time.monotonic() - began_s < ANSWER_WALL_S
    return reply


def state(engine: TroubledEngine) -> MachineState:
    reply = asked(engine, StateRequest())
    assert isinstance(reply, StateReply)
    return reply.state


def last_fault(engine: TroubledEngine) -> FaultRecord:
    return state(engine).faults[-1]


def hang(engine: TroubledEngine, chip: int) -> FaultReport:
    report = asked(engine, InjectRequest(fault=Fault(kind=FaultKind.HANG_CHIP, chip=chip)))
    assert isinstance(report, FaultReport)
    return report


def test_everything_is_answered_in_a_hold_and_healing_ends_it(
    engine: TroubledEngine, right: Texts
) -> None:
    texts: Texts = {}
    add(engine, "held")
    for _ in range(3):
        step(engine, texts)
    began_s = time.monotonic()
    report = hang(engine, 2)
    assert report.stall_wall_s >= HANG_S * K
    for _ in range(5):
        step(engine, texts)

    shown = state(engine)
    assert shown.chips[2].health is ChipHealth.HUNG
    assert shown.stall is not None
    assert shown.stall.wall_left_s > 0.9 * HANG_S * K
    assert shown.faults[-1].stage is FaultStage.PENDING
    telemetry = asked(engine, TelemetryRequest())
    assert isinstance(telemetry, TelemetryReply)
    assert telemetry.telemetry.stall is not None

    lease = asked(engine, DrainRequest(chips=(3,), grace_s=100.0))
    assert isinstance(lease, LeaseReport)
    assert lease.lease is not None
    assert isinstance(asked(engine, ResumeRequest(lease=lease.lease.number)), LeaseReport)
    lost = asked(engine, InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=1)))
    assert isinstance(lost, FaultReport)
    assert state(engine).chips[1].health is ChipHealth.LOST
    engine.abort("held/5")

    healed = asked(engine, HealRequest(chip=2))
    assert isinstance(healed, HealReport)
    assert report.number in healed.healed
    drain(engine, texts)

    assert time.monotonic() - began_s < HANG_S * K / 10
    texts.pop("5", None)
    assert texts == {name: text for name, text in right.items() if name != "5"}
    assert state(engine).stall is None


def test_two_faults_that_overlap_each_name_the_requests_that_they_moved(
    engine: TroubledEngine, right: Texts
) -> None:
    texts: Texts = {}
    add(engine, "two")
    for _ in range(3):
        step(engine, texts)
    on_rank = {n: set(engine.scheduler.ranks[n].requests) for n in range(4)}
    first = hang(engine, 2).number
    step(engine, texts)
    second = asked(engine, InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=1))).number
    asked(engine, HealRequest(chip=2))
    drain(engine, texts)

    assert texts == right
    records = {record.number: record for record in state(engine).faults}
    for number, rank in ((first, 2), (second, 1)):
        recovery = records[number].recovery
        assert recovery is not None
        assert set(recovery.moved) == on_rank[rank]
        assert recovery.requests_moved == len(on_rank[rank])


def test_a_process_that_is_stopped_under_load_is_found_within_the_setting(
    engine: TroubledEngine, right: Texts
) -> None:
    texts: Texts = {}
    add(engine, "stopped")
    for _ in range(3):
        step(engine, texts)
    engine.processes()[1].suspend()
    began_s = time.monotonic()
    while not state_has_hung(engine, 1):
        step(engine, texts)
        assert time.monotonic() - began_s < SILENCE_WALL_S + 10.0, "it was not found"
    drain(engine, texts)

    assert texts == right
    record = engine.live_machine.faults.records[-1]
    assert record.fault == Fault(kind=FaultKind.HANG_CHIP, chip=1)


def state_has_hung(engine: TroubledEngine, chip: int) -> bool:
    return bool(engine.live_machine.actual.hung[chip])


@pytest.mark.parametrize("end", ["suspend", "kill"])
def test_a_process_that_stops_in_an_idle_engine_is_found_by_reading_its_state(
    engine: TroubledEngine, right: Texts, end: str
) -> None:
    getattr(engine.processes()[3], end)()
    began_s = time.monotonic()
    while (how := state(engine).chips[3].health) is ChipHealth.UP:
        time.sleep(0.1)
        assert time.monotonic() - began_s < SILENCE_WALL_S + 5.0, "it was not found"

    assert how is (ChipHealth.HUNG if end == "suspend" else ChipHealth.LOST)
    assert last_fault(engine).stage in (FaultStage.RECOVERING, FaultStage.RECOVERED)
    assert serve(engine, end) == right
