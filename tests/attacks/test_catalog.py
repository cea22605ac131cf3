import asyncio
import time
from collections.abc import Callable

import pytest

from tests.attacks import (
    bodies,
    console,
    grpc_streams,
    heads,
    http2_frames,
    keyed_work,
    smuggling,
    tls,
)
from tests.attacks.__main__ import main
from tests.attacks.answers import Answers
from tests.attacks.attack import Attack, Budget, Server
from tests.attacks.attacker import Attacker, attacked
from tests.attacks.catalog import ATTACKS
from tests.attacks.target import HOST, Target

FAMILIES = (heads, bodies, smuggling, grpc_streams, http2_frames, console, keyed_work, tls)


def test_every_attack_of_every_family_is_there_under_a_name_of_its_own() -> None:
    names = [attack.name for family in FAMILIES for attack in family.ATTACKS]

    assert len(names) == len(set(names)) == len(ATTACKS)
    assert len(ATTACKS) >= 23


def test_no_attack_may_spend_more_than_ten_seconds_or_two_gigabytes() -> None:
    for attack in ATTACKS.values():
        assert attack.budget.wall_s <= 10, attack.name
        assert attack.budget.sent_bytes <= 2_000_000_000, attack.name
        assert attack.budget.connections <= 500, attack.name


def test_the_everyday_tests_need_one_server_and_less_than_a_minute() -> None:
    cheap = [attack for attack in ATTACKS.values() if attack.cheap]

    assert {attack.on for attack in cheap} == {Server.PLAIN}
    assert len(cheap) <= 25


@pytest.mark.parametrize("name", ["connections", "sent_bytes", "bytes_per_s", "wall_s"])
def test_a_budget_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Budget(**{name: 0})


def test_the_list_names_every_attack(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ATTACKS)


def test_a_name_that_no_attack_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "smugling"]) == 2
    assert "smugling" in capsys.readouterr().err


async def _attack_a_sink(
    run: Callable[[Attacker], object], budget: Budget, reply: bytes = b""
) -> tuple[Answers, int, int]:
    """What an attack heard from a server that reads all and says `reply`, and what that saw."""
    seen = {"bytes": 0, "connections": 0}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen["connections"] += 1
        writer.write(reply)
        while piece := await reader.read(2**16):
            seen["bytes"] += len(piece)
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    target = Target(
        http_port=port, grpc_port=port, control_port=port, console_port=port, model="m", key="k"
    )
    attack = Attack(name="a", what="", run=run, budget=budget)  # type: ignore[arg-type]
    answers = await attacked(attack, target, seed=1)
    await asyncio.sleep(0.05)  # lets the sink see the end
    server.close()
    return answers, seen["bytes"], seen["connections"]


async def _send_for_ever(attacker: Attacker) -> None:
    wire = await attacker.connect(attacker.target.http_port)
    while True:
        await wire.send(b"x" * 1_000)


async def _connect_for_ever(attacker: Attacker) -> None:
    while True:
        await attacker.connect(attacker.target.http_port)


async def _hear_two(attacker: Attacker) -> None:
    wire = await attacker.connect(attacker.target.http_port)
    await wire.answer()
    await wire.answer()


def test_an_attack_ends_when_its_bytes_are_spent() -> None:
    budget = Budget(sent_bytes=50_500, wall_s=10)
    _, seen_bytes, _ = asyncio.run(_attack_a_sink(_send_for_ever, budget))

    assert seen_bytes <= 50_500


@pytest.mark.long
def test_an_attack_sends_no_faster_than_it_may() -> None:
    began_s = time.monotonic()
    budget = Budget(sent_bytes=60_000, bytes_per_s=100_000, wall_s=10)
    asyncio.run(_attack_a_sink(_send_for_ever, budget))

    assert time.monotonic() - began_s > 0.5


@pytest.mark.long
def test_an_attack_ends_when_its_time_or_its_connections_are_spent() -> None:
    budget = Budget(bytes_per_s=10_000, wall_s=0.3)
    began_s = time.monotonic()
    asyncio.run(_attack_a_sink(_send_for_ever, budget))
    assert time.monotonic() - began_s < 5
    _, _, connections = asyncio.run(_attack_a_sink(_connect_for_ever, Budget(connections=7)))
    assert connections == 7


def test_an_attacker_hears_answers_of_both_framings_and_a_close() -> None:
    chunked = b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    sized = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 401 X\r\nContent-Length: 2\r\n\r\n{}"
    answers, _, _ = asyncio.run(_attack_a_sink(_hear_two, Budget(), chunked + sized))

    assert answers.by_status == {"500": 1, "401": 1}
    assert answers.unreasoned == ["500 b'abc'"]
