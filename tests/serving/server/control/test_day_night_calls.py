"""Leases, day and night, versions and vLLM's own words over the wire, and as commands."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.errors import ConfigError
from serving.main import main
from serving.server.control.control_client import (
    NOT_DONE,
    ControlClient,
    RefusedByServer,
    ServerUnreachable,
)
from serving.server.day_night.controller import DayNight
from serving.wire import control_call
from serving.wire.control_call import DrainRequest, EngineSleepState, PublishRequest
from tests.serving.server.control.small_engine import connected, control_server
from tests.serving.server.day_night.lending_engine import LendingEngine, a_settings, job_command


class RestfulEngine(LendingEngine):
    """It also sleeps and pauses, as vLLM's own does, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        self.asleep = self.held = False
        self.refusal: Exception | None = None

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.refusal is not None:
            raise self.refusal

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self._called("sleep", level, mode)
        self.asleep, self.held = level > 0, True

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        self._called("wake_up", tags)
        self.asleep = self.held = tags is not None and len(tags) < 2
        return not self.asleep

    async def is_sleeping(self) -> bool:
        return self.asleep

    async def pause_generation(self, *, mode: str = "abort", clear_cache: bool = True) -> None:
        self._called("pause", mode, clear_cache)
        self.held = True

    async def resume_generation(self) -> None:
        self._called("resume")
        self.held = False

    async def is_paused(self) -> bool:
        return self.held


@pytest.fixture
def lender() -> RestfulEngine:
    return RestfulEngine()


@pytest.fixture
def address(lender: RestfulEngine) -> Iterator[str]:
    with control_server(lender) as listening:
        yield str(listening)


@pytest.fixture
def client(lender: RestfulEngine) -> Iterator[ControlClient]:
    with control_server(lender) as listening, connected(listening) as made:
        yield made


@pytest.fixture
def nights(lender: RestfulEngine, tmp_path: Path) -> Iterator[str]:
    """The address of a server with a controller, which looks when it is asked."""
    controller = DayNight(
        lender, a_settings(tmp_path, policy="manual"), job_command=job_command(tmp_path)
    )
    with control_server(lender, controller) as listening:
        yield str(listening)


def shown(address: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `ultraserve daynight --json` prints."""
    assert run("daynight", "--json", address=address) == 0
    state: dict[str, Any] = json.loads(capsys.readouterr().out)
    return state


def run(*arguments: str, address: str) -> int:
    return main([*arguments, "--address", address])


@pytest.mark.long
def test_chips_are_drained_and_resumed_by_command(
    lender: RestfulEngine, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("drain", "--chips", "2-3", "--grace", "1.5", address=address) == 0
    assert capsys.readouterr().out == "lease 1, chips 2, 3: draining: drains\n"
    (asked,) = lender.asked
    assert asked == DrainRequest(chips=(2, 3), grace_s=1.5, purpose="maintenance")
    assert run("resume", "1", "--json", address=address) == 0
    assert json.loads(capsys.readouterr().out)["lease"]["phase"] == "serving"


@pytest.mark.long
def test_a_refused_drain_is_one_line(
    lender: RestfulEngine, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lender.refuses = "96 expert slots are needed, there are 64"

    assert run("drain", "--chips", "2", address=address) == NOT_DONE
    assert capsys.readouterr().err == (
        "ultraserve drain: 96 expert slots are needed, there are 64\n"
    )


@pytest.mark.parametrize("chips", ["", "a", "3-2", "1,1", "1-", "-1", "1,,2"])
def test_chips_that_are_none_are_refused_before_anything_is_sent(chips: str) -> None:
    with pytest.raises(SystemExit):
        main(["drain", f"--chips={chips}"])


def test_the_wire_refuses_what_no_machine_could_do(client: ControlClient) -> None:
    for chips, grace_s in (([], 1.0), ([-1], 1.0), ([1], -1.0), ([1], float("nan"))):
        with pytest.raises(RefusedByServer, match="expected"):
            client.call(control_call.DRAIN, chips=chips, grace_s=grace_s, purpose="maintenance")
    with pytest.raises(RefusedByServer, match="lease=0: expected at least 1"):
        client.call(control_call.RESUME, lease=0)


def test_a_server_without_a_controller_says_so(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["daynight"],
        ["daynight", "policy", "never"],
        ["daynight", "group", "1", "training"],
    ):
        assert run(*arguments, address=address) in (2, NOT_DONE)
        assert "this server was started without --day-night" in capsys.readouterr().err


def test_day_and_night_are_shown_and_set_by_command(
    lender: RestfulEngine, nights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("daynight", "group", "3", "training", address=nights) == 0
    shown = capsys.readouterr().out
    assert "4 of 4 groups serve, 3 wanted: set by hand" in shown
    assert "    3  3      serving  training      -         0  -" in shown.splitlines()
    assert "job absent, in " in shown
    assert run("daynight", "policy", "schedule:22:00-06:00", "--json", address=nights) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["policy"] == "schedule:22:00-06:00@UTC"
    assert state["next_change_day_s"] == state["day_s"] + 10 * 3600


def test_a_policy_that_runs_a_file_is_not_taken_from_a_call(
    nights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text("raise SystemExit('it was run')\n")

    assert run("daynight", "policy", f"python:{path}:mine", address=nights) == NOT_DONE
    assert "expected a policy that runs no file" in capsys.readouterr().err


def test_a_lease_is_a_line_of_its_hand_over(
    lender: RestfulEngine, nights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lender._drain(DrainRequest(chips=(2, 3), grace_s=0.0))
    assert run("daynight", address=nights) == 0

    *_, header, row = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["lease", "chips", "phase"]
    assert row.split()[:4] == ["1", "2,3", "draining", "0.000"]
    assert len(row) <= 140


@pytest.mark.long
def test_what_the_controller_decides_is_not_done_by_hand(
    lender: RestfulEngine, nights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("daynight", "policy", "never", address=nights) == 0
    for arguments in (
        ["lend", "--chips", "3"],
        ["resume", "1"],
        ["daynight", "group", "3", "training"],
    ):
        assert run(*arguments, address=nights) == NOT_DONE
        assert "the policy never decides which chips train" in capsys.readouterr().err
    assert run("lend", "--chips", "3", "--dry-run", address=nights) == 0
    assert capsys.readouterr().out.startswith("dry run: ")
    assert lender.going == []


@pytest.mark.long
def test_under_the_policy_manual_a_loan_is_what_the_controller_wants(
    lender: RestfulEngine, nights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("lend", "--chips", "3", "--grace", "7", address=nights) == 0
    assert capsys.readouterr().out.startswith("group 3 is drained, and trains then")
    state = shown(nights, capsys)
    assert [group["desired"] for group in state["groups"]] == [*["serving"] * 3, "training"]
    assert state["groups_desired"] == 3
    lender._drain(DrainRequest(chips=(3,), grace_s=7.0))  # as it would, were it not this still
    assert run("resume", "2", address=nights) == NOT_DONE
    assert "lease=2: expected one that is out: 1" in capsys.readouterr().err
    assert run("resume", "1", address=nights) == 0
    assert "group 3 is called back" in capsys.readouterr().out
    assert shown(nights, capsys)["groups"][3]["desired"] == "serving"


@pytest.mark.long
def test_a_loan_by_hand_that_cannot_be_is_one_line_and_nothing_is_wanted(
    lender: RestfulEngine, nights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("lend", "--chips", "2,3", address=nights) == NOT_DONE
    assert "chips=2,3: expected those of one group" in capsys.readouterr().err
    lender.refuses = "96 expert slots are needed, there are 64"
    assert run("lend", "--chips", "3", address=nights) == NOT_DONE
    assert "96 expert slots" in capsys.readouterr().err
    assert shown(nights, capsys)["groups_desired"] == 4


@pytest.mark.long
def test_maintenance_is_an_operator_s_under_any_policy(
    lender: RestfulEngine, nights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("daynight", "policy", "never", address=nights) == 0
    capsys.readouterr()
    assert run("drain", "--chips", "2,3", address=nights) == 0
    assert capsys.readouterr().out == "lease 1, chips 2, 3: draining: drains\n"
    assert shown(nights, capsys)["leases"][0]["purpose"] == "maintenance"
    assert run("resume", "1", address=nights) == 0
    assert [type(asked).__name__ for asked in lender.asked] == ["DrainRequest", "ResumeRequest"]


def test_a_publication_by_hand_shows_beside_day_and_night(
    lender: RestfulEngine, nights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("publish", str(tmp_path), "--note", "by hand", address=nights) == 0
    capsys.readouterr()
    assert run("daynight", address=nights) == 0
    assert f"serves version 2, v2 (by hand), on 4 ranks, from {tmp_path}" in capsys.readouterr().out
    assert shown(nights, capsys)["versions"][-1]["number"] == 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["policy", "sometimes"], "policy=sometimes: expected never"),
        (["policy", "demand"], "--group-requests-per-s"),
        (["policy", "oracle"], "expected a policy that need not know the day"),
        (["group", "4", "training"], "group=4: expected 0 to 3"),
    ],
)
def test_what_the_controller_cannot_do_is_one_line(
    nights: str, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("daynight", *arguments, address=nights) == NOT_DONE
    assert line in capsys.readouterr().err


def test_a_gone_engine_has_no_day_and_no_rest(lender: RestfulEngine, nights: str) -> None:
    lender.errored = True
    for arguments in (["daynight"], ["engine", "sleep"], ["engine", "state"]):
        assert run(*arguments, address=nights) in (2, NOT_DONE)


@pytest.mark.long
def test_weights_are_published_and_rolled_back_by_command(
    lender: RestfulEngine, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("rollback", address=address) == NOT_DONE
    assert "there is no version before" in capsys.readouterr().err
    assert run("publish", str(tmp_path), "--note", "by hand", address=address) == 0
    assert capsys.readouterr().out == "version 2 (v2): every block serves it\n"
    assert lender.asked[-1] == PublishRequest(weights_dir=str(tmp_path), note="by hand")
    assert run("rollback", address=address) == 0
    assert capsys.readouterr().out == "version 3 (v3): every block serves it\n"
    assert run("publish", str(tmp_path / "none"), address=address) == 2
    assert "expected a checkpoint directory" in capsys.readouterr().err


def test_the_engine_sleeps_and_wakes_in_vllm_s_words(
    lender: RestfulEngine, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for arguments in (
        ["state"],
        ["sleep", "--level", "2", "--mode", "wait"],
        ["wake_up", "--tags", "weights"],
        ["wake_up"],
        ["pause", "--mode", "keep", "--keep-cache"],
        ["resume"],
    ):
        assert run("engine", *arguments, address=address) == 0
        said.append(capsys.readouterr().out.removeprefix("the engine is ").strip())
    assert said == [
        *("awake", "asleep and paused", "asleep and paused", "awake", "paused", "awake")
    ]
    assert lender.calls == [
        ("sleep", 2, "wait"),
        ("wake_up", ["weights"]),
        ("wake_up", None),
        ("pause", "keep", False),
        ("resume",),
    ]


def test_vllm_s_defaults_are_the_wire_s(lender: RestfulEngine, client: ControlClient) -> None:
    assert client.call(control_call.PAUSE_GENERATION) == EngineSleepState(
        sleeping=False, paused=True
    )
    assert client.call(control_call.SLEEP) == EngineSleepState(sleeping=True, paused=True)
    assert lender.calls == [("pause", "abort", True), ("sleep", 1, "abort")]


def test_what_vllm_does_not_know_or_refuses_is_one_line(
    lender: RestfulEngine, client: ControlClient
) -> None:
    with pytest.raises(RefusedByServer, match="level=3: expected 1 or 2"):
        client.call(control_call.SLEEP, level=3)
    with pytest.raises(ConfigError, match="mode=later: expected one of abort, wait, keep"):
        client.call(control_call.PAUSE_GENERATION, mode="later")  # no number of the wire's says so
    with pytest.raises(RefusedByServer, match="tags=dreams: expected weights or kv_cache"):
        client.call(control_call.WAKE_UP, tags=["dreams"])
    assert lender.calls == []
    lender.refusal = ValueError("chips are lent out:\nresume them first")
    with pytest.raises(RefusedByServer, match=r"^chips are lent out: resume them first$"):
        client.call(control_call.SLEEP)


def test_sleep_in_a_hand_over_is_refused_before_any_request_is_aborted(
    lender: RestfulEngine, client: ControlClient
) -> None:
    client.call(control_call.DRAIN, chips=[2, 3], grace_s=1.0, purpose="maintenance")

    with pytest.raises(RefusedByServer, match="lease 1 is draining"):
        client.call(control_call.SLEEP)
    assert lender.calls == []
    client.call(control_call.SLEEP, level=1)  # the look before has let the drain end
    assert lender.calls == [("sleep", 1, "abort")]


def test_an_engine_that_ends_while_it_falls_asleep_ends_the_call(
    lender: RestfulEngine, client: ControlClient
) -> None:
    def end(*call: Any) -> None:
        lender.errored = True
        raise RuntimeError("the engine's process has ended")

    lender._called = end  # type: ignore[method-assign]
    begun_s = time.monotonic()
    with pytest.raises(ServerUnreachable, match="the engine is gone"):
        client.call(control_call.SLEEP)
    assert time.monotonic() - begun_s < 5
