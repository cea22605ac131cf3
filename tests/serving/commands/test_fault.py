"""`ultraserve fault` against a real control server with a small engine behind it."""

import argparse
import json
import threading
from collections.abc import Iterator

import pytest

from emulator.errors import ConfigError, UltraServeError
from emulator.specs.fault import Fault, FaultKind, LinkTier
from serving.commands import fault as command
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import OutcomeUnknown
from serving.wire.machine_state import FaultStage
from tests.e2e.server_process import free_port
from tests.serving.server.control.small_engine import SmallEngine, control_server, recovered


@pytest.fixture
def engine() -> SmallEngine:
    return SmallEngine()


@pytest.fixture
def address(engine: SmallEngine) -> Iterator[ControlAddress]:
    with control_server(engine) as listening:
        yield listening


def run(address: ControlAddress | None, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    where = ["--address", str(address)] if address else []
    args = parser.parse_args(["fault", *arguments, *where])
    code: int = args.run(args)
    return code


@pytest.mark.parametrize(
    ("arguments", "fault", "words"),
    [
        (["lose-chip", "--chip", "1"], Fault(kind=FaultKind.LOSE_CHIP, chip=1), "lose-chip chip 1"),
        (["hang-chip", "--chip", "0"], Fault(kind=FaultKind.HANG_CHIP, chip=0), "hang-chip chip 0"),
        (
            ["slow-chip", "--chip", "2", "--factor", "2.5"],
            Fault(kind=FaultKind.SLOW_CHIP, chip=2, factor=2.5),
            "slow-chip chip 2 factor 2.5",
        ),
        (
            ["fail-stack", "--chip", "1", "--stack", "3"],
            Fault(kind=FaultKind.FAIL_STACK, chip=1, stack=3),
            "fail-stack chip 1 stack 3",
        ),
        (
            ["cut-link", "--chip", "1", "--tier", "cross-rack"],
            Fault(kind=FaultKind.CUT_LINK, chip=1, tier=LinkTier.CROSS_RACK),
            "cut-link chip 1 tier cross-rack all lanes",
        ),
        (
            ["cut-link", "--chip", "1", "--tier", "tray", "--lanes", "20"],
            Fault(kind=FaultKind.CUT_LINK, chip=1, tier=LinkTier.TRAY, lanes=20),
            "cut-link chip 1 tier tray lanes 20",
        ),
        (
            ["pull-switch-tray", "--rack", "1"],
            Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=1),
            "pull-switch-tray rack 1",
        ),
    ],
)
def test_each_kind_of_fault_happens_and_is_said(
    arguments: list[str],
    fault: Fault,
    words: str,
    engine: SmallEngine,
    address: ControlAddress,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(address, *arguments) == 0

    assert [record.fault for record in engine.state.faults] == [fault]
    assert capsys.readouterr().out == f"fault 1: {words}: survivable: a spare takes over\n"


def test_every_kind_has_its_action() -> None:
    assert set(command._KINDS) == set(FaultKind)


def test_waiting_prints_what_the_recovery_took(
    address: ControlAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(address, "lose-chip", "--chip", "1", "--wait") == 0

    assert capsys.readouterr().out.splitlines() == [
        "fault 1: lose-chip chip 1: survivable: a spare takes over",
        "fault 1: recovered after 2.500 emulated ms (0.12 s of wall time): 3 requests moved, "
        "0 failed, 64 experts reloaded",
    ]


def test_waiting_in_json_is_the_fault_s_record_alone(
    engine: SmallEngine, address: ControlAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(address, "lose-chip", "--chip", "1", "--wait", "5", "--json") == 0

    shown = json.loads(capsys.readouterr().out)
    assert (shown["number"], shown["stage"]) == (1, "recovered")
    assert shown["recovery"]["emulated_ns"] == 2_500_000


def test_a_recovery_that_lost_requests_ends_with_1(
    address: ControlAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    for chip in ("0", "1"):
        assert run(address, "lose-chip", "--chip", chip) == 0
    assert run(address, "lose-chip", "--chip", "2", "--wait") == 1

    assert "fault 3: failed after 2.500 emulated ms" in capsys.readouterr().out


def test_a_recovery_that_does_not_end_in_time_ends_with_1(
    engine: SmallEngine,
    address: ControlAddress,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(engine, "_recover", lambda: None)

    assert run(address, "hang-chip", "--chip", "1", "--wait", "0.01") == 1
    assert capsys.readouterr().out.endswith("fault 1: pending\n")


def test_a_dry_run_says_whether_and_changes_nothing(
    engine: SmallEngine, address: ControlAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(address, "lose-chip", "--chip", "1", "--dry-run", "--wait") == 0
    assert engine.state.faults == ()
    for chip in ("0", "1"):
        assert run(address, "lose-chip", "--chip", chip) == 0
    assert run(address, "lose-chip", "--chip", "2", "--dry-run") == 1

    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "dry run: lose-chip chip 1: survivable: a spare takes over"
    assert last == "dry run: lose-chip chip 2: not survivable: no chip is left"


def test_faults_are_listed_with_what_they_took(
    engine: SmallEngine, address: ControlAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(address, "list") == 0
    assert run(address, "lose-chip", "--chip", "1", "--wait") == 0
    assert run(address, "pull-switch-tray", "--rack", "0") == 0
    capsys.readouterr()
    assert run(address, "list") == 0

    assert capsys.readouterr().out.splitlines() == [
        "no.  fault                    injected s  survivable  stage      recovery ms  wall s"
        "  moved  failed  reloaded  reason",
        "  1  lose-chip chip 1          12.500000  yes         recovered        2.500    0.12"
        "      3       0        64  a spare takes over",
        "  2  pull-switch-tray rack 0   12.500000  yes         pending              -       -"
        "      -       -         -  a spare takes over",
    ]


def test_no_faults_are_said_so(address: ControlAddress, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(address, "list") == 0
    assert run(address, "list", "--json") == 0

    assert capsys.readouterr().out == "no faults\n[]\n"


@pytest.mark.parametrize(
    ("which", "healed"),
    [
        (["--chip", "1"], "healed: 1"),
        (["--rack", "0"], "healed: 2"),
        (["--all"], "healed: 1, 2"),
        (["--chip", "0"], "nothing to heal"),
    ],
)
def test_healing_prints_what_is_over(
    which: list[str], healed: str, address: ControlAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    run(address, "hang-chip", "--chip", "1")
    run(address, "pull-switch-tray", "--rack", "0")
    capsys.readouterr()

    assert run(address, "heal", *which) == 0
    assert capsys.readouterr().out == f"{healed}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["lose-chip"],
        ["lose-chip", "--chip", "-1"],
        ["lose-chip", "--chip", "1.5"],
        ["lose-chip", "--chip", str(2**31)],
        ["slow-chip", "--chip", "1"],
        ["cut-link", "--chip", "1"],
        ["cut-link", "--chip", "1", "--tier", "rack"],
        ["pull-switch-tray"],
        ["heal"],
        ["heal", "--all", "--chip", "1"],
        ["melt-chip"],
        [],
    ],
)
def test_arguments_that_no_fault_has_are_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(None, *arguments)
    assert capsys.readouterr().err.startswith("usage: ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["slow-chip", "--chip", "1", "--factor", "1"], "factor=1.0: expected a number above 1"),
        (["lose-chip", "--chip", "1", "--wait", "0"], "wait=0.0: expected a number above 0"),
    ],
)
def test_a_value_that_cannot_be_meant_is_one_line_before_anything_is_sent(
    arguments: list[str], line: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        run(ControlAddress(port=free_port()), *arguments)
    assert str(raised.value) == line


def test_a_refusal_is_the_server_s_own_line(address: ControlAddress) -> None:
    with pytest.raises(UltraServeError, match=r"^chip=9: expected 0 to 2$"):
        run(address, "lose-chip", "--chip", "9")


def test_a_recovered_fault_stays_as_it_is(engine: SmallEngine, address: ControlAddress) -> None:
    run(address, "lose-chip", "--chip", "1", "--wait")
    (record,) = engine.state.faults

    assert recovered(record) == record


@pytest.mark.long
def test_a_heal_that_takes_longer_than_a_call_is_waited_for(
    engine: SmallEngine, address: ControlAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(address, "lose-chip", "--chip", "1") == 0
    engine.silent = True
    healer = threading.Timer(3.0, lambda: setattr(engine, "silent", False))
    healer.start()
    assert run(address, "heal", "--chip", "1") == 0
    healer.join()

    assert [record.stage for record in engine.state.faults] == [FaultStage.HEALED]
    assert len([line for line in engine.lines if "heal" in line.lower()]) == 1


def test_a_heal_that_is_not_over_in_time_is_unknown(
    engine: SmallEngine, address: ControlAddress
) -> None:
    engine.silent = True
    with pytest.raises(OutcomeUnknown, match="--idempotency-key"):
        run(address, "heal", "--all", "--timeout", "0.2")
    engine.silent = False
