import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.placement import EMPTY, ExpertPlacement
from serving.policy.placement.chip_loads import chip_loads, chip_loads_slowly
from tests.serving.policy.placement.cases import imbalance, loads_for, placement, placements


def test_copies_share_their_experts_load_evenly() -> None:
    placed = placement([[0, 1], [0, 2]], experts=3, ep=2)

    assert chip_loads(np.array([[8, 1, 3]]), placed).tolist() == [[5, 7]]
    assert imbalance(np.array([[8, 1, 3]]), placed).tolist() == [7 / 6]


def test_groups_are_loaded_by_themselves() -> None:
    placed = placement([[0], [1], [1], [0]], experts=2, ep=2)
    load = np.array([[[6, 2]], [[4, 4]]])  # [groups, layers, experts]

    assert chip_loads(load, placed).tolist() == [[6, 2, 4, 4]]
    assert imbalance(load, placed).tolist() == [1.5]


def test_an_idle_chip_counts_in_the_mean_and_a_lost_one_does_not() -> None:
    placed = placement([[0], [1], [EMPTY]], experts=2, ep=3)
    load = np.array([[3, 3]])
    usable = np.array([True, True, False])

    assert imbalance(load, placed).tolist() == [1.5]
    assert imbalance(load, placed, usable).tolist() == [1.0]


def test_a_layer_without_load_is_in_balance() -> None:
    placed = placement([[0], [1]], [[0], [1]], experts=2, ep=2)

    assert imbalance(np.array([[0, 0], [1, 0]]), placed).tolist() == [1.0, 2.0]


def test_load_on_an_expert_without_a_slot_is_refused_by_name() -> None:
    placed = placement([[0], [1]], experts=3, ep=2)

    with pytest.raises(ValueError, match="expert 2 of layer 0 has load and no slot in group 0"):
        chip_loads(np.array([[1, 1, 1]]), placed)
    assert chip_loads(np.array([[1, 1, 0]]), placed).tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (np.zeros((1, 4)), "a load of"),
        (np.zeros(3), r"not \(3,\)"),
        (np.zeros((2, 1, 3)), r"\[1 groups"),
        (np.array([[1.0, np.nan, 0.0]]), "finite"),
        (np.array([[1, -1, 0]]), "at least 0"),
    ],
)
def test_a_load_that_is_none_is_refused(load: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        chip_loads(load, placement([[0, 1], [2, 0]], experts=3, ep=2))


@given(data=st.data(), placed=placements(), by_group=st.booleans())
def test_loads_agree_with_the_slow_reference_and_none_is_lost(
    data: st.DataObject, placed: ExpertPlacement, by_group: bool
) -> None:
    load = data.draw(loads_for(placed, by_group=by_group))

    found = chip_loads(load, placed)

    np.testing.assert_allclose(found, chip_loads_slowly(load, placed))
    groups = found.reshape(placed.layers, -1, placed.ep).sum(axis=2)  # [layers, groups]
    given_to = np.broadcast_to(load.sum(axis=-1), groups.T.shape)
    np.testing.assert_allclose(groups, given_to.T)
    assert (imbalance(load, placed) >= 1.0 - 1e-12).all()
    assert (imbalance(load, placed) <= placed.chips + 1e-9).all()
