"""`ultraserve simulate` with faults, timeouts, and prompts on chips of their own."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from serving.main import main
from serving.simulator.simulated_machine import RECOVERIES

SMALL = [
    *("simulate", "--model", "qwen3-30b-a3b", "--chips", "8"),
    *("--requests", "60", "--rate", "30", "--input", "200", "--output", "20", "--json"),
]


def figures(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main([*SMALL, *options]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_what_a_machine_does_after_a_fault_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What configures logging in this process, as vLLM, may have disabled it, or all of it, and a
    # logger remembers whether a level is enabled.
    monkeypatch.setattr(RECOVERIES, "disabled", False)
    monkeypatch.setattr(RECOVERIES, "level", logging.WARNING)
    monkeypatch.setattr(RECOVERIES, "_cache", {})
    monkeypatch.setattr(RECOVERIES.manager, "disable", logging.NOTSET)
    calls = tmp_path / "calls.jsonl"
    calls.write_text(
        '{"at_s": 1, "call": {"method": "inject", "fault": {"kind": "lose-chip", "chip": 3}}}\n'
    )
    assert main([*SMALL, "--calls", str(calls)]) == 0
    assert "after lose-chip: 7 of 8 ranks are up" in capsys.readouterr().err


@pytest.mark.long
def test_what_happens_to_chips_and_clients_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = tmp_path / "calls.jsonl"
    calls.write_text(
        '{"at_s": 1, "call": {"method": "inject", "fault": {"kind": "lose-chip", "chip": 3}}}\n'
    )
    plain = figures(capsys)
    struck = figures(capsys, "--calls", str(calls))
    assert struck["completed_requests"] == 60
    assert struck["ttft_ms"]["p99"] > plain["ttft_ms"]["p99"] + 50
    lost = figures(capsys, "--chip-loss-every", "0.5", "--repair", "0.5")
    assert lost["completed_requests"] + lost["failed_requests"] == 60
    assert lost["e2e_ms"]["p99"] > plain["e2e_ms"]["p99"]
    hasty = figures(capsys, "--timeout", f"{plain['e2e_ms']['p50'] / 1e3}")
    assert 20 <= hasty["failed_requests"] <= 40
    assert hasty["completed_requests"] + hasty["failed_requests"] == 60


@pytest.mark.long
def test_prompts_go_to_chips_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    together = figures(capsys)
    apart = figures(capsys, "--prefill-chips", "4", "--prefill-replicas", "2")
    assert apart["completed_requests"] == 60
    assert apart["tpot_ms"]["p99"] < together["tpot_ms"]["p99"]  # no prompt is in their way
    assert apart["chip_watts"] > together["chip_watts"]  # twice as many


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--repair", "3"], "repair=3.0: expected nothing without --chip-loss-every"),
        (["--prefill-tp", "2"], "prefill-tp=2: expected nothing without --prefill-chips"),
        (["--timeout", "0"], "timeout=0.0"),
        (["--calls", "nowhere.jsonl"], "calls=nowhere.jsonl"),
        (["--prefill-chips", "0"], "prefill-chips=0"),
    ],
)
def test_what_would_do_nothing_is_refused(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *options]) == 2
    assert named in capsys.readouterr().err
