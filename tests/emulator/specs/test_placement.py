import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.placement import EMPTY, ExpertPlacement


def placement(slots: list[list[list[int]]], *, experts: int, ep: int) -> ExpertPlacement:
    return ExpertPlacement(experts=experts, ep=ep, expert_of_slot=np.array(slots, dtype=np.int64))


class TestEven:
    def test_seven_experts_on_two_groups_of_three_chips_by_hand(self) -> None:
        even = ExpertPlacement.even(layers=2, experts=7, chips=6, ep=3, spare_slots=1)

        group = [[0, 1, 2, EMPTY], [3, 4, EMPTY, EMPTY], [5, 6, EMPTY, EMPTY]]
        assert even.expert_of_slot.tolist() == [[*group, *group]] * 2
        assert (even.layers, even.chips, even.slots) == (2, 6, 4)
        assert (even.experts, even.ep) == (7, 3)

    def test_fewer_experts_than_chips_leave_chips_without_any(self) -> None:
        even = ExpertPlacement.even(layers=1, experts=2, chips=3, ep=3)

        assert even.expert_of_slot.tolist() == [[[0], [1], [EMPTY]]]
        assert even.missing() == []

    def test_a_model_without_experts_has_no_slots(self) -> None:
        dense = ExpertPlacement.even(layers=0, experts=0, chips=4, ep=2)

        assert (dense.layers, dense.chips, dense.slots) == (0, 4, 0)
        assert dense.missing() == []

    @given(
        st.integers(1, 3),
        st.integers(1, 60),
        st.integers(1, 4),
        st.integers(1, 9),
        st.integers(0, 2),
    )
    def test_every_group_holds_every_expert_once_and_chips_differ_by_at_most_one(
        self, layers: int, experts: int, groups: int, ep: int, spare_slots: int
    ) -> None:
        even = ExpertPlacement.even(
            layers=layers, experts=experts, chips=groups * ep, ep=ep, spare_slots=spare_slots
        )

        assert even.copies().shape == (groups, layers, experts)
        assert (even.copies() == 1).all()
        assert even.slots == -(-experts // ep) + spare_slots
        held = (even.expert_of_slot != EMPTY).sum(axis=2)  # [layers, chips]
        assert held.max() - held.min() <= 1
        filled = even.expert_of_slot[0, :ep]
        assert filled[filled != EMPTY].tolist() == list(range(experts))


class TestCopies:
    HELD = placement(
        [
            [[0, 1], [2, 0], [0, 1], [2, 2]],
            [[2, 1], [0, EMPTY], [1, 1], [EMPTY, 2]],
        ],
        experts=3,
        ep=2,
    )

    def test_they_are_counted_by_group_layer_and_expert(self) -> None:
        assert self.HELD.copies().tolist() == [
            [[2, 1, 1], [1, 1, 1]],
            [[1, 1, 2], [0, 2, 1]],
        ]

    def test_what_a_group_has_nowhere_is_missing(self) -> None:
        assert self.HELD.missing() == [(1, 1, 0)]

    def test_without_chips_their_slots_are_empty_and_the_first_is_unchanged(self) -> None:
        left = self.HELD.without([0, 3])

        assert left.expert_of_slot.tolist() == [
            [[EMPTY, EMPTY], [2, 0], [0, 1], [EMPTY, EMPTY]],
            [[EMPTY, EMPTY], [0, EMPTY], [1, 1], [EMPTY, EMPTY]],
        ]
        assert left.missing() == [(0, 0, 1), (0, 1, 1), (0, 1, 2), (1, 0, 2), (1, 1, 0), (1, 1, 2)]
        assert self.HELD.expert_of_slot[0, 0].tolist() == [0, 1]

    @given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 3), st.integers(1, 6))
    def test_they_are_what_counting_slot_by_slot_gives(
        self, seed: int, groups: int, ep: int, experts: int
    ) -> None:
        rng = np.random.default_rng(seed)
        slots = rng.integers(EMPTY, experts, (2, groups * ep, 3))
        held = ExpertPlacement(experts=experts, ep=ep, expert_of_slot=slots)

        expected = [
            [
                [
                    int((slots[layer, group * ep : (group + 1) * ep] == expert).sum())
                    for expert in range(experts)
                ]
                for layer in range(2)
            ]
            for group in range(groups)
        ]
        assert held.copies().tolist() == expected
        assert held.missing() == [
            (group, layer, expert)
            for group in range(groups)
            for layer in range(2)
            for expert in range(experts)
            if expected[group][layer][expert] == 0
        ]


@pytest.mark.parametrize(
    ("slots", "ep", "line"),
    [
        (np.zeros((2, 4), dtype=np.int64), 4, r"int64\[layers, chips, slots\], not \(2, 4\)"),
        (np.zeros((1, 4, 1)), 4, r"int64\[layers, chips, slots\]"),
        (np.full((1, 4, 1), 5), 4, r"one of 5 experts, or -1"),
        (np.full((1, 4, 1), -2), 4, r"one of 5 experts, or -1"),
        (np.zeros((1, 4, 1), dtype=np.int64), 3, "4 chips are not whole groups of 3"),
        (np.zeros((1, 4, 1), dtype=np.int64), 0, "4 chips are not whole groups of 0"),
    ],
)
def test_what_is_no_placement_is_refused(slots: np.ndarray, ep: int, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        ExpertPlacement(experts=5, ep=ep, expert_of_slot=slots)
