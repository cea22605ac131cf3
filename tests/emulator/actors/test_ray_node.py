from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from emulator.actors.ray_session import RayNode, spread_chips

NODES = tuple(RayNode(node_id=str(n), address=f"10.0.0.{n}", is_here=n == 0) for n in range(5))


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
