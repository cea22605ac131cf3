"""What the engine says of requests while a step is held: the real scheduler and executor."""

import time

import pytest

from emulator.specs.fault import Fault, FaultKind
from serving.plugin.merge import REFRESH_WALL_S
from serving.plugin.translate import StillHeld
from serving.wire.control_call import InjectRequest, WatchReply, WatchRequest
from tests.serving.plugin.core_engine import Engine

pytestmark = pytest.mark.long


def test_requests_that_come_while_a_step_is_held_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, chips=2, clock="dilated:20")
    for name in ("one", "two"):
        engine.add(name, 10)
    engine.control(InjectRequest(fault=Fault(kind=FaultKind.HANG_CHIP, chip=1)))
    assert isinstance(engine.turn()[1], StillHeld)
    for name in ("three", "four", "five"):
        engine.add(name, 10)
    time.sleep(REFRESH_WALL_S)
    assert isinstance(engine.turn()[1], StillHeld)

    watched = engine.control(WatchRequest())
    assert isinstance(watched, WatchReply)
    assert (watched.arrived_requests, watched.running, watched.waiting) == (5, 2, 3)
