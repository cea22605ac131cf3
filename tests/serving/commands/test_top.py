"""`ultraserve top`, printed once, of a real control server with a small engine behind it."""

import json

import pytest

from serving.main import main
from tests.e2e.server_process import free_port
from tests.serving.commands.looked_at_engine import LookedAtEngine
from tests.serving.server.control.small_engine import control_server

pytestmark = pytest.mark.long


def test_where_the_output_is_no_terminal_it_is_printed_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with control_server(LookedAtEngine(4)) as address:
        assert main(["top", "--address", str(address)]) == 0

    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "ultraserve top 0.1.0  trn3-nl72x2 (emulated)  lnc 2  qwen3-30b-a3b" in out
    assert "ND3  NC15  [····················]    2.0%" in out
    assert "Tokens/s out     1,234" in out
    assert "vCPU server" in out
    assert "not to be seen" not in out  # the server is this very process


def test_json_is_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    with control_server(LookedAtEngine(4)) as address:
        assert main(["top", "--json", "--address", str(address)]) == 0

    figures = json.loads(capsys.readouterr().out)
    assert figures["chips"][3]["utilization"] == 0.02
    assert figures["tokens"]["output_per_s"] == 1234.0
    assert figures["host"]["memory_total_bytes"] > 2**30


def test_a_key_that_the_server_does_not_know_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with control_server(LookedAtEngine(4)) as address:
        monkeypatch.setenv("ULTRASERVE_CONTROL_KEY", "x" * 40)
        assert main(["top", "--address", str(address)]) == 2

    shown = capsys.readouterr()
    assert "the server does not know the key" in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")


@pytest.mark.parametrize("interval", ["0", "0.1", "nan", "3601"])
def test_an_interval_that_cannot_be_meant_is_one_line(
    interval: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--interval", interval]) == 2

    assert "expected 0.25 to 3600 seconds" in capsys.readouterr().err


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--address", f"127.0.0.1:{free_port()}"]) == 2

    assert "nobody answers; is `ultraserve serve` running" in capsys.readouterr().err
