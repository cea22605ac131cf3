from itertools import groupby

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from emulator.actors.ray_session import HomeNode, RayNode, RaySession, spread_chips

GB = 1_000_000_000
NODES = tuple(
    RayNode(node_id=str(n), address=f"10.0.0.{n}", is_here=n == 0, memory_bytes=(n + 1) * GB)
    for n in range(5)
)


def ids(chips: int, nodes: int, tray_chips: int = 4) -> str:
    return "".join(node.node_id for node in spread_chips(chips, NODES[:nodes], tray_chips))


def test_trays_are_dealt_in_runs_and_stay_whole() -> None:
    assert ids(16, 2) == "0000000011111111"
    assert ids(12, 2) == "000000001111"
    assert ids(14, 3) == "00000000111122"
    assert ids(8, 1) == "00000000"


def test_fewer_trays_than_nodes_are_divided_by_chips() -> None:
    assert ids(4, 2) == "0011"
    assert ids(5, 3) == "00112"
    assert ids(1, 3) == "0"


@given(chips=st.integers(1, 144), nodes=st.integers(1, 5), tray_chips=st.integers(1, 8))
def test_every_node_has_one_run_and_runs_differ_by_one_unit_at_most(
    chips: int, nodes: int, tray_chips: int
) -> None:
    spread = spread_chips(chips, NODES[:nodes], tray_chips)

    assert len(spread) == chips
    runs = [(key, len(list(run))) for key, run in groupby(spread, key=lambda node: node.node_id)]
    assert [key for key, _ in runs] == sorted({key for key, _ in runs})
    trays = -(-chips // tray_chips)
    unit = tray_chips if trays >= nodes else 1
    units = [-(-length // unit) for _, length in runs]
    assert max(units) - min(units) <= 1
    assert len(runs) == min(nodes, -(-chips // unit))
    if unit > 1:
        for first in range(0, chips, tray_chips):
            assert len({node.node_id for node in spread[first : first + tray_chips]}) == 1


@pytest.mark.parametrize(
    ("number", "need_gb", "expected"),
    [(0, 1, "0"), (1, 1, "1"), (2, 3, "2"), (3, 1, "0"), (7, 2, "1"), (0, 2, "012"), (4, 3, "012")],
)
def test_numbers_go_round_the_nodes_and_too_little_memory_spreads(
    number: int, need_gb: int, expected: str
) -> None:
    taken = HomeNode(number=number, need_bytes=need_gb * GB).among(NODES[:3])

    assert "".join(node.node_id for node in taken) == expected


class Cluster:
    """Ray's list of nodes, and this process's own, the first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alive = [0, 1]
        monkeypatch.setattr(ray, "get_runtime_context", lambda: self)
        monkeypatch.setattr(ray, "nodes", self.nodes)

    def get_node_id(self) -> str:
        return "0"

    def nodes(self) -> list[dict[str, object]]:
        return [
            {
                "NodeID": str(n),
                "NodeManagerAddress": f"10.0.0.{n}",
                "Alive": n in self.alive,
                "Resources": {"CPU": 1.0, "memory": 1.0 * GB},
            }
            for n in range(5)
        ]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def placed(session: RaySession, chips: int = 4) -> str:
    return "".join(node.node_id for node in session.place_chips(chips))


def at_home(number: int, need_bytes: int = GB) -> RaySession:
    return RaySession("10.0.0.0:6379", home=HomeNode(number=number, need_bytes=need_bytes))


def test_chips_at_home_share_memory_where_that_is_here(cluster: Cluster) -> None:
    sessions = (at_home(0), at_home(1), RaySession("10.0.0.0:6379"))

    assert [placed(session) for session in sessions] == ["0000", "1111", "0011"]
    assert [session.channel_host() for session in sessions] == [None, "10.0.0.0", "10.0.0.0"]


def test_chips_too_large_for_a_home_are_spread_by_trays(cluster: Cluster) -> None:
    session = at_home(1, need_bytes=GB + 1)

    assert placed(session, 8) == "00001111"
    assert session.channel_host() == "10.0.0.0"


def test_a_home_stays_while_it_lives_however_others_come_and_go(cluster: Cluster) -> None:
    cluster.alive = [0, 1, 2]
    session = at_home(2)
    assert placed(session) == "2222"

    cluster.alive = [0, 2, 3]
    assert placed(session) == "2222"
    cluster.alive = [0, 3]
    assert placed(session) == "0000"
