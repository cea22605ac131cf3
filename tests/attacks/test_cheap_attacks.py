"""The cheap half of `make attack`, shortened: memory, reasons and faults, but nobody's latency."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.attacks.attack import Attack, Server
from tests.attacks.attacked_server import AttackedServer, attacked_server
from tests.attacks.catalog import ATTACKS
from tests.attacks.server_memory import ServerMemory
from tests.attacks.trial import attack_until_decided, failures_of

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

WALL_S_MAX = 1.25


@pytest.fixture(scope="module")
def server() -> Iterator[AttackedServer]:
    with attacked_server(Server.PLAIN) as made:
        yield made


@pytest.fixture(scope="module")
def memory(server: AttackedServer) -> Iterator[ServerMemory]:
    with ServerMemory(server.process.pid) as made:
        yield made


@pytest.mark.parametrize(
    "attack", [each for each in ATTACKS.values() if each.cheap], ids=lambda each: each.name
)
def test_a_server_stands(attack: Attack, server: AttackedServer, memory: ServerMemory) -> None:
    budget = replace(attack.budget, wall_s=min(attack.budget.wall_s, WALL_S_MAX))
    trials = attack_until_decided(replace(attack, budget=budget), server, memory, seed=0)

    assert failures_of(trials) == []
