"""`ultraserve watch` against a real control server with a small engine behind it."""

import json
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from emulator.specs.fault import Fault, FaultKind
from serving.commands.watch import event_line, figure_line, header_line
from serving.main import main
from serving.server.control import engine_watch
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_server import ControlServer
from serving.wire import control_call
from serving.wire.machine_state import StallState
from serving.wire.telemetry import EventKind, MachineEvent
from tests.serving.server.control.small_engine import (
    SmallEngine,
    connected,
    control_server,
    wait_until,
)
from tests.serving.telemetry.telemetry_snapshots import a_telemetry


@pytest.fixture
def servers() -> list[ControlServer]:
    return []


@pytest.fixture
def address(
    servers: list[ControlServer], monkeypatch: pytest.MonkeyPatch
) -> Iterator[ControlAddress]:
    monkeypatch.setattr(engine_watch, "_IDLE_S", 0.05)
    with control_server(SmallEngine(), served=servers.append) as listening:
        yield listening


def run(address: ControlAddress, *arguments: str) -> int:
    return main(["watch", *arguments, "--address", str(address)])


def test_rates_are_per_emulated_second() -> None:
    before = a_telemetry(emulated_s=10.0, prompt_tokens=1_000, output_tokens=500)
    look = a_telemetry(
        emulated_s=12.0,
        prompt_tokens=5_000,
        output_tokens=700,
        kv_blocks_used=2048,
        kv_blocks=8192,
        chips_up=2,
        lag_s=0.5,
    )

    line = figure_line(before, look).split()
    assert " ".join(line) == ("12.000 1,234 3 1 2,000 100 25.0 2/2 2/2 1,801 3,000 0.500")
    assert figure_line(None, look).split()[4:6] == ["-", "-"]
    assert figure_line(look, look).split()[4:6] == ["-", "-"]
    assert len(header_line()) == len(figure_line(before, look))


def test_figures_come_line_by_line(
    address: ControlAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(address, "--interval", "0.1", "--count", "3") == 0

    head, *lines = capsys.readouterr().out.splitlines()
    assert head == header_line()
    assert len(lines) == 3


def test_json_is_a_look_a_line(address: ControlAddress, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(address, "--interval", "0.1", "--count", "2", "--json") == 0

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["requests_running"] == 3
    assert first["skipped"] == 0
    assert second["steps"] > first["steps"]


def test_events_are_printed_from_the_first_that_is_remembered(
    address: ControlAddress, servers: list[ControlServer], capsys: pytest.CaptureFixture[str]
) -> None:
    with connected(address) as client:
        client.call(control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.LOSE_CHIP, chip=1))
    wait_until(lambda: servers[0].watch.last_number == 1)
    assert run(address, "--events", "--after", "0", "--count", "1") == 0
    assert "fault 1, lose-chip of chip 1: injected, " in capsys.readouterr().out
    assert run(address, "--events", "--after", "0", "--count", "1", "--json") == 0
    line = json.loads(capsys.readouterr().out)
    assert line["fault"]["fault"]["chip"] == 1
    with_run = ("--events", "--after", "0", "--count", "1", "--run")
    assert run(address, *with_run, line["run"]) == 0
    assert run(address, *with_run, "another") == 2
    assert "the server has started again since" in capsys.readouterr().err


def test_what_is_forgotten_is_said() -> None:
    event = MachineEvent(
        number=7, emulated_s=1.5, unix_s=3_600.0, kind=EventKind.DOOR, words="closed: draining"
    )

    assert event_line(event, 0) == "     7 01:00:00        1.500 s  closed: draining"
    assert event_line(event, 2).startswith("(2 events before this one are forgotten)\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--count", "0"], "count=0: expected at least 1"),
        (["--after", "1"], "after=1: expected an event's, with --events"),
        (["--events", "--after", "-1"], "after=-1: expected an event's, with --events"),
        (["--events", "--run", "a"], "run=a: expected --after N with it"),
        (["--events", "--interval", "1"], "interval=1.0: expected no --events with it"),
        (["--interval", "0.01"], "interval_s=0.01: expected 0.1 to 60 seconds"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_one_line(
    arguments: list[str], line: str, address: ControlAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(address, *arguments) == 2
    assert capsys.readouterr().err == f"ultraserve watch: {line}\n"


def test_a_machine_that_stands_still_and_a_look_that_is_old_are_told_behind_the_figures() -> None:
    stall = StallState(until_emulated_s=40.0, left_s=30.0, wall_left_s=600.4, reason="chip 2")
    calm = a_telemetry()
    plain = figure_line(None, calm)

    assert figure_line(None, replace(calm, stall=stall)) == (
        f"{plain}  stands still: 600 s of wall time left"
    )
    assert figure_line(None, replace(calm, age_s=2.25)) == f"{plain}  2.2 s old"
