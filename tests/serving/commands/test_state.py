"""`ultraserve state` against a real control server with a small engine behind it."""

import argparse
import json

import msgspec
import pytest

from emulator.errors import ConfigError, UltraServeError
from serving.commands import state as command
from serving.wire.machine_state import HostRatio, MachineState, SleepState
from tests.e2e.server_process import free_port
from tests.serving.server.control.small_engine import SmallEngine, control_server
from tests.serving.server.day_night.lending_engine import a_version
from tests.serving.telemetry.machine_states import a_broken_chip, a_state


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["state", *arguments])
    code: int = args.run(args)
    return code


def test_the_text_says_what_the_machine_is_and_does() -> None:
    assert list(command.state_lines(a_state())) == [
        "trn3-nl72x2, 2 chips from chip 0 on: tp 1, dp 2, ep 2, lnc 2, attention by heads, "
        "1 spares",
        "model qwen3-30b-a3b, weights stand-in small-moe, routing computed",
        "emulated 12.500000 s (4 wall seconds each), 1,234 steps; 1,801 W chips, 3,000 W facility "
        "(mean of the last 5 s)",
        "ranks 2 of 2 up; requests 6 running, 1 waiting; KV blocks 20 of 8,192",
        "switch trays up: rack 0 9 of 10, rack 1 10 of 10",
        "expert load, most over mean: 1.250; last rebalance 2.500 -> 1.125 (3 so far, "
        "7.000 GB moved)",
        "faults: 1, 1 not healed",
        "",
        "chip  rack  tray  at   rank  health  HBM GiB   of  experts  of  watts",
        "   0     0     0   0      0  up         5.59  134       64  96    700",
        "   1     0     0   1      1  up         5.59  134       64  96    700",
        "   2     0     0   2  spare  up         0.00  134        0  96    400",
    ]


def test_a_clock_that_follows_the_load_tells_its_epoch_and_what_it_began_with() -> None:
    ratios = (
        HostRatio(load="decode, 1 request a rank", ratio=38.44, chosen=True),
        HostRatio(load="prefill", ratio=3_250.0),
    )
    state = msgspec.structs.replace(a_state(), clock_epoch=3, host_ratios=ratios)

    assert list(command.state_lines(state))[2:5] == [
        "emulated 12.500000 s (4 wall seconds each, epoch 3), 1,234 steps; 1,801 W chips, "
        "3,000 W facility "
        "(mean of the last 5 s)",
        "clock: decode, 1 request a rank: this host needs 38.4 wall seconds for an emulated one "
        "(chosen to begin with)",
        "clock: prefill: this host needs 3,250 wall seconds for an emulated one",
    ]


def test_what_a_chip_has_lost_stands_beside_its_health() -> None:
    assert command.chip_health(a_broken_chip()) == (
        "slow x2.5, stack 0 failed, cross-rack 4 of 16 lanes cut"
    )


def test_a_chip_that_does_not_serve_says_what_it_does() -> None:
    lent = msgspec.structs.replace(a_broken_chip(), phase="training")

    assert command.chip_health(lent).startswith("slow x2.5, training, ")


def test_weights_that_some_rank_serves_and_a_sleeping_engine_are_told() -> None:
    versions = (a_version(1, "/a"), msgspec.structs.replace(a_version(2, "/b"), note="night"))
    versions = (msgspec.structs.replace(versions[0], target=False, ranks=0), versions[1])
    sleep = SleepState(asleep=("kv_cache",))
    state = msgspec.structs.replace(a_state(), versions=versions, sleep=sleep)

    assert list(command.state_lines(state))[7:9] == [
        "weights v2 on 4 ranks: night",
        "asleep: kv_cache",
    ]


def test_a_machine_that_has_done_nothing_yet_says_so() -> None:
    empty = msgspec.structs.replace(
        a_state().expert_balance, imbalance=None, imbalance_before=None, imbalance_after=None
    )
    lines = list(
        command.state_lines(msgspec.structs.replace(a_state(), dilation=0.0, expert_balance=empty))
    )

    assert lines[2].startswith("emulated 12.500000 s (virtual), ")
    assert lines[5] == "expert load: nothing routed yet"


def test_json_is_the_whole_state_in_base_units(capsys: pytest.CaptureFixture[str]) -> None:
    engine = SmallEngine()
    with control_server(engine) as address:
        assert run("--address", str(address), "--json") == 0

    shown = capsys.readouterr().out
    assert msgspec.json.decode(shown, type=MachineState) == engine.state
    assert json.loads(shown)["chips"][0]["stacks"][0]["owner_bytes"]["kv"] == 10**9


def test_the_text_is_the_server_s(capsys: pytest.CaptureFixture[str]) -> None:
    engine = SmallEngine()
    with control_server(engine) as address:
        assert run("--address", str(address)) == 0

    assert capsys.readouterr().out.splitlines() == list(command.state_lines(engine.state))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--address", "there"], "control_address=there: expected HOST:PORT"),
        (["--address", "there/x:1"], "control_address=there/x: expected HOST:PORT"),
        (["--tls-cert", "none.pem"], "tls_cert=none.pem: expected both --tls-cert and --tls-key"),
        (["--timeout", "0"], "timeout=0.0: expected a number above 0"),
        (["--timeout", "nan"], "timeout=nan: expected a number above 0"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_one_line(arguments: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        run(*arguments)
    assert str(raised.value).startswith(line)


def test_no_server_is_one_line() -> None:
    with pytest.raises(UltraServeError, match="nobody answers; is `ultraserve serve` running"):
        run("--address", f"127.0.0.1:{free_port()}")
