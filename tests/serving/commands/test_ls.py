"""`ultraserve ls` of the catalog and of a real control server with a small engine behind it."""

import io
import json
import os
import sys

import pytest

from serving.main import main
from serving.wire.machine_state import ChipHealth
from tests.e2e.server_process import free_port
from tests.serving.commands.looked_at_engine import LookedAtEngine
from tests.serving.server.control.small_engine import control_server
from tests.serving.telemetry.neuron_tools.looks import a_chip


def test_a_system_of_the_catalog_needs_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--system", "trn3-nl72x2", "--lnc", "2"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "instance-type: trn3-nl72x2",
        "instance-id: emulated",
        "logical-neuroncore-config: 2",
    ]
    cells = [cell.strip() for cell in lines[7].strip("|").split("|")]
    assert cells == ["0", "4", "0-3", "144 GiB", "1, 2, 3, 72", "NA", "NA", "NA"]
    assert len(lines) == 3 + 4 + 144 + 1


def test_topology_is_drawn_below_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--system", "trn2.48xlarge", "-t"]) == 0

    out = capsys.readouterr().out
    assert "Neuron Device Topology" in out
    assert "CORE IDS" not in out


def test_json_of_a_server_names_devices_and_the_processes_that_use_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with control_server(LookedAtEngine(2)) as address:
        assert main(["ls", "-j", "--address", str(address)]) == 0

    first, second = json.loads(capsys.readouterr().out)
    assert [first["neuron_device"], second["neuron_device"]] == [0, 1]
    assert first["connected_to"] == [1]
    # The server listens in a thread of this very process.
    assert [process["pid"] for process in first["neuron_processes"]] == [os.getpid()]


def test_a_lost_device_is_not_listed_and_stderr_names_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    chips = (a_chip(0), a_chip(1, health=ChipHealth.LOST, rank=None))
    with control_server(LookedAtEngine(2, chips=chips)) as address:
        assert main(["ls", "-w", "--address", str(address)]) == 0

    shown = capsys.readouterr()
    assert shown.err == "device 1 is lost\n"
    assert [line.split()[1] for line in shown.out.splitlines() if line.startswith("| ")][2:] == [
        "0"
    ]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--lnc", "2"], "lnc=2: expected --system with it; a server has its own"),
        (["--chips", "2"], "chips=2: expected --system with it; a server has its own"),
        (["--system", "trn9"], "system=trn9: expected one of"),
        (["--system", "trn3-nl72x2", "--lnc", "3"], "NCC_EARG001: lnc=3: expected a logical core"),
        (["--system", "trn3-nl72x2", "--chips", "0"], "chips=0: expected 1 to 144"),
        (["-t", "-w", "--system", "trn3-nl72x2"], "wide=given: expected no --topology with it"),
        (["-t", "-a"], "show-all-procs=given: expected no --topology with it"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls", *arguments]) == 2

    shown = capsys.readouterr()
    assert shown.err.startswith(f"ultraserve ls: {line}")
    assert (shown.err.count("\n"), shown.out) == (1, "")


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--address", f"127.0.0.1:{free_port()}"]) == 2

    assert "nobody answers; is `ultraserve serve` running" in capsys.readouterr().err


def test_an_output_that_has_no_bars_is_given_question_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["ls", "--system", "trn2.48xlarge", "-t"]) == 0
    sys.stdout.flush()
    drawn = raw.getvalue().decode("ascii")
    assert "Neuron Device Topology" in drawn
    assert "?" in drawn
