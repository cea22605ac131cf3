"""Each attack without a key reaches a server that reads all and answers nothing."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from tests.attacks.answers import Answers
from tests.attacks.attack import Attack, Server
from tests.attacks.attacker import attacked
from tests.attacks.catalog import ATTACKS
from tests.attacks.target import HOST, Target

pytestmark = pytest.mark.long

WALL_S = 0.3
SENDS_NOTHING = {
    "silent-connections",
    "console-silent",
    "control-silent",
    "tls-silent",
    "tls-grpc-silent",
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    made = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.issue_cert(HOST).configure_cert(context)
    file: Path = tmp_path_factory.mktemp("authority") / "authority.pem"
    made.cert_pem.write_to_path(file)
    return context, str(file)


async def _attack_a_sink(
    attack: Attack, authority: tuple[ssl.SSLContext, str]
) -> tuple[Answers, int, int]:
    """What the attack heard, and how many connections and bytes were seen."""
    seen_bytes = connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen_bytes, connections
        connections += 1
        try:
            while piece := await reader.read(2**16):
                seen_bytes += len(piece)
        except OSError:
            pass  # it was reset
        finally:
            writer.close()

    context, file = authority
    is_tls = attack.name in {"tls-small-records", "tls-header-lines", "tls-grpc-unfinished"}
    server = await asyncio.start_server(serve, HOST, 0, ssl=context if is_tls else None)
    port = server.sockets[0].getsockname()[1]
    target = Target(
        http_port=port,
        grpc_port=port,
        control_port=port if not is_tls else 1,
        console_port=port if not is_tls else 1,
        model="m",
        key="k",
        authority=file if attack.on is Server.TLS else "",
    )
    answers = await attacked(attack, target, seed=1)
    await asyncio.sleep(0.02)  # lets the sink see the end
    server.close()
    return answers, connections, seen_bytes


@pytest.mark.parametrize(
    "attack",
    [each for each in ATTACKS.values() if not each.needs_key],  # theirs take long to be made
    ids=lambda each: each.name,
)
def test_an_attack_reaches_its_server_and_keeps_to_its_budget(
    attack: Attack, authority: tuple[ssl.SSLContext, str]
) -> None:
    for wall_s in (WALL_S, 20 * WALL_S):  # a busy machine may not come to send within the first
        shortened = replace(attack, budget=replace(attack.budget, wall_s=wall_s))
        _, connections, seen_bytes = asyncio.run(_attack_a_sink(shortened, authority))
        if seen_bytes or attack.name in SENDS_NOTHING:
            break

    assert 0 < connections <= attack.budget.connections
    assert seen_bytes <= attack.budget.sent_bytes * 1.1  # TLS adds a little
    assert (seen_bytes > 0) == (attack.name not in SENDS_NOTHING)
