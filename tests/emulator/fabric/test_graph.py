from dataclasses import replace

import numpy as np
import pytest

from emulator.fabric.graph import FabricGraph, GraphDraft, NodeKind
from emulator.fabric.tiers import Tier


def two_chips_at_a_switch() -> FabricGraph:
    draft = GraphDraft(2)
    switch = draft.add_node("switch", NodeKind.SWITCH)
    chips = np.arange(2)
    draft.add_links(chips, switch, bytes_per_s=5.0, latency_ns=3, tier=Tier.TRAY, lanes=4)
    draft.add_links(switch, chips, bytes_per_s=np.array([5.0, 0.0]), latency_ns=0, tier=Tier.TRAY)
    return draft.frozen()


def test_links_are_of_one_direction_and_those_without_bandwidth_are_not_there() -> None:
    graph = two_chips_at_a_switch()

    assert graph.names == ("chip 0", "chip 1", "switch")
    assert (graph.nodes, graph.links) == (3, 3)
    ends = set(zip(graph.source.tolist(), graph.target.tolist(), strict=True))
    assert ends == {(0, 2), (1, 2), (2, 0)}


def test_cables_between_the_same_nodes_are_one_link_with_all_their_lanes() -> None:
    draft = GraphDraft(2)
    for _ in range(2):
        draft.add_links(0, 1, bytes_per_s=7.0, latency_ns=1, tier=Tier.TRAY, lanes=8)

    graph = draft.frozen()

    assert (graph.bytes_per_s.tolist(), graph.lanes.tolist()) == ([14.0], [16.0])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target", np.array([2, 2, 3])),
        ("target", np.array([0, 2, 0])),
        ("target", np.array([2, 2])),
        ("source", np.array([0, 0, 2])),
        ("bytes_per_s", np.array([5.0, 0.0, 5.0])),
        ("latency_ns", np.array([0.0, -1.0, 0.0])),
        ("kinds", (NodeKind.SWITCH,) * 3),
    ],
)
def test_a_graph_that_cannot_be_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"link|kind"):
        replace(two_chips_at_a_switch(), **{field: value})
