from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.chip.effects import Dispatch, ExpertRows
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.ultraserver.exchange import ExpertMap, LayerExchange, finish_exchange, plan_exchange

HIDDEN = 3


def dispatch(chosen: list[list[int]], first_value: float = 0.0, layer: int = 7) -> Dispatch:
    """Tokens whose hidden states are first_value, first_value + 1, ... in every element."""
    values = first_value + np.arange(len(chosen), dtype=np.float32)
    hidden = np.repeat(values[:, None], HIDDEN, axis=1)
    return Dispatch(layer=layer, hidden=hidden, chosen=np.array(chosen, dtype=np.int64))


def even(experts: int, chips: int, ep: int | None = None) -> ExpertMap:
    return ExpertMap(ExpertPlacement.even(layers=8, experts=experts, chips=chips, ep=ep or chips))


class TestExpertMap:
    def test_a_chip_keeps_to_its_own_copy_and_others_are_spread_over_the_copies(self) -> None:
        slots = np.array([[[0, 1], [2, 0], [EMPTY, 3]]])  # [layers, chips, slots]
        experts = ExpertMap(ExpertPlacement(experts=4, ep=3, expert_of_slot=slots))

        # Place = 2 * chip + slot. Expert 0 lies on chips 0 and 1, chip 2 takes the first of them.
        assert experts.place[0].tolist() == [[0, 1, 2, 5], [3, 1, 2, 5], [0, 1, 2, 5]]

    def test_groups_keep_to_themselves(self) -> None:
        experts = even(4, 4, ep=2)

        assert experts.place[0].tolist() == 2 * [[0, 1, 2, 3]] + 2 * [[4, 5, 6, 7]]

    def test_copies_share_the_chips_that_have_none(self) -> None:
        slots = np.array([[[0], [0], [1], [1], [2], [3]]])
        experts = ExpertMap(ExpertPlacement(experts=4, ep=6, expert_of_slot=slots))

        chosen = experts.place[0, 2:, 0]
        assert sorted(chosen.tolist()) == [0, 0, 1, 1]

    def test_an_expert_that_a_group_has_lost_is_empty(self) -> None:
        placement = ExpertPlacement.even(layers=1, experts=4, chips=4, ep=2).without([2])
        experts = ExpertMap(placement)

        assert experts.place[0, 3].tolist() == [EMPTY, EMPTY, 6, 7]
        assert experts.place[0, 0].tolist() == [0, 1, 2, 3]


def experts_on_two_of_three_chips() -> ExpertMap:
    slots = np.array([[[0, 1], [2, 3], [EMPTY, EMPTY]]])
    every_layer = np.repeat(slots, 8, axis=0)
    return ExpertMap(ExpertPlacement(experts=4, ep=3, expert_of_slot=every_layer))


class TestByHand:
    @pytest.fixture
    def exchange(self) -> LayerExchange:
        """Ranks 0 and 2 dispatch two tokens and one; experts 0 and 1 on chip 0, 2 and 3 on 1."""
        return plan_exchange(
            {2: dispatch([[1, 3]], 50.0), 0: dispatch([[1, 2], [0, 1]], 10.0)},
            experts_on_two_of_three_chips(),
        )

    def test_each_chip_gets_the_tokens_of_its_experts_once_and_pairs_sorted_by_expert(
        self, exchange: LayerExchange
    ) -> None:
        assert exchange.layer == 7
        assert sorted(exchange.work) == [0, 1]
        first, second = exchange.work[0], exchange.work[1]
        assert first.layer == second.layer == 7
        assert first.rows[:, 0].tolist() == [10, 11, 50]
        assert first.row_of_pair.tolist() == [1, 0, 1, 2]  # expert 0: 11; expert 1: 10, 11, 50
        assert first.counts.tolist() == [1, 3]
        assert second.rows[:, 0].tolist() == [10, 50]
        assert second.row_of_pair.tolist() == [0, 1]
        assert second.counts.tolist() == [1, 1]
        assert exchange.pairs.tolist() == [4, 2, 0]

    def test_answers_return_to_their_token_in_the_order_of_its_choices(
        self, exchange: LayerExchange
    ) -> None:
        def answer(*values: float) -> ExpertRows:
            return ExpertRows(layer=7, rows=np.repeat(np.float32(values)[:, None], HIDDEN, axis=1))

        combines = finish_exchange(exchange, {1: answer(104, 105), 0: answer(100, 101, 102, 103)})

        assert sorted(combines) == [0, 2]
        assert combines[0].layer == combines[2].layer == 7
        assert combines[0].expert_rows.shape == (2, 2, HIDDEN)
        assert combines[0].expert_rows[..., 0].tolist() == [[101, 104], [100, 102]]
        assert combines[2].expert_rows[..., 0].tolist() == [[103, 105]]

    def test_it_counts_what_was_chosen_and_what_moved(self, exchange: LayerExchange) -> None:
        assert exchange.expert_pairs.tolist() == [[1, 3, 1, 1]]
        assert exchange.distinct.tolist() == [2, 2, 0]
        assert exchange.sent.tolist() == [[2, 1, 0], [0, 0, 0], [1, 1, 0]]
        assert exchange.tokens_of_source == {0: 2, 2: 1}

    def test_what_was_chosen_is_counted_for_each_group_of_chips(self) -> None:
        dispatches = {0: dispatch([[0, 1]]), 1: dispatch([[1, 3]]), 3: dispatch([[2, 3], [0, 3]])}

        exchange = plan_exchange(dispatches, even(4, 4, ep=2))

        assert exchange.expert_pairs.tolist() == [[1, 2, 0, 1], [1, 0, 1, 2]]
        assert exchange.pairs.tolist() == [3, 1, 1, 3]

    def test_a_chip_whose_experts_nobody_chose_is_not_asked(self) -> None:
        exchange = plan_exchange({1: dispatch([[4, 5]])}, even(6, 3))

        assert list(exchange.work) == [2]
        assert exchange.pairs.tolist() == [0, 0, 2]


@dataclass(frozen=True)
class Case:
    """Dispatches of some ranks, and where the experts live."""

    dispatches: dict[int, Dispatch]
    placement: ExpertPlacement
    chips: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    chips = draw(st.integers(1, 5))
    per_chip = draw(st.integers(1, 4))
    count = chips * per_chip
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Every expert once, some twice, some slots empty.
    spare = draw(st.integers(0, 2)) * chips
    extra = rng.integers(EMPTY, count, spare)
    slots = rng.permutation(np.concatenate([np.arange(count), extra]))
    placement = ExpertPlacement(experts=count, ep=chips, expert_of_slot=slots.reshape(1, chips, -1))
    k = draw(st.integers(1, count))
    # A rank may be absent, or be there without a token; somebody has one.
    tokens = draw(st.lists(st.none() | st.integers(0, 6), min_size=chips, max_size=chips))
    if not any(tokens):
        tokens[0] = 1
    dispatches = {}
    for rank in rng.permutation(chips).tolist():
        if (here := tokens[rank]) is not None:
            chosen = [np.sort(rng.permutation(count)[:k]) for _ in range(here)]
            dispatches[rank] = Dispatch(
                layer=0,
                hidden=rng.standard_normal((here, HIDDEN)).astype(np.float32),
                chosen=np.array(chosen, dtype=np.int64).reshape(here, k),
            )
    return Case(dispatches, placement, chips)


def expert_output(expert: int, row: np.ndarray) -> np.ndarray:
    """Something that tells every expert and every row apart."""
    return row * np.float32(expert + 1) + np.float32(expert)


@given(cases())
def test_every_rank_gets_what_asking_each_expert_for_each_token_gives(case: Case) -> None:
    exchange = plan_exchange(case.dispatches, ExpertMap(case.placement))

    answers = {}
    for chip, work in exchange.work.items():
        here = case.placement.expert_of_slot[0, chip]
        assert len(work.counts) == len(here)
        expert_of_pair = np.repeat(here, work.counts)
        rows = [
            expert_output(expert, work.rows[row])
            for expert, row in zip(expert_of_pair, work.row_of_pair, strict=True)
        ]
        answers[chip] = ExpertRows(layer=0, rows=np.array(rows, dtype=np.float32))
    combines = finish_exchange(exchange, answers)

    assert combines.keys() == case.dispatches.keys()
    for rank, sent in case.dispatches.items():
        expected = np.array(
            [
                [expert_output(expert, row) for expert in chosen]
                for row, chosen in zip(sent.hidden, sent.chosen.tolist(), strict=True)
            ],
            dtype=np.float32,
        ).reshape(*sent.chosen.shape, HIDDEN)
        assert combines[rank].expert_rows.shape == expected.shape
        assert (combines[rank].expert_rows == expected).all()


def test_pairs_of_one_expert_keep_the_order_of_ranks_and_tokens() -> None:
    rng = np.random.default_rng(0)
    dispatches = {
        rank: dispatch([rng.permutation(8)[:4].tolist() for _ in range(200)], 1_000.0 * rank)
        for rank in range(3)
    }

    exchange = plan_exchange(dispatches, even(8, 3))

    for work in exchange.work.values():
        ends = np.cumsum(work.counts)
        for start, end in zip(ends - work.counts, ends, strict=True):
            sent = work.rows[work.row_of_pair[start:end], 0]
            assert (np.diff(sent) > 0).all()


@given(cases())
def test_a_token_travels_once_to_each_chip_that_holds_one_of_its_experts(case: Case) -> None:
    exchange = plan_exchange(case.dispatches, ExpertMap(case.placement))

    places = ExpertMap(case.placement).place
    needed = np.zeros((case.chips, 0), dtype=bool)  # [chips, tokens]
    for rank in sorted(case.dispatches):
        chips_of_token = places[0, rank][case.dispatches[rank].chosen] // case.placement.slots
        here = [(chips_of_token == chip).any(axis=1) for chip in range(case.chips)]
        needed = np.concatenate([needed, here], axis=1)
    sent = [
        len(exchange.work[chip].rows) if chip in exchange.work else 0 for chip in range(case.chips)
    ]
    assert sent == needed.sum(axis=1).tolist()
    pairs = sum(sent.chosen.size for sent in case.dispatches.values())
    assert exchange.pairs.sum() == exchange.expert_pairs.sum() == pairs
    assert exchange.sent.sum(axis=0).tolist() == sent
    assert exchange.sent.sum() <= pairs
    counts = [np.count_nonzero(exchange.work[chip].counts) for chip in exchange.work]
    assert exchange.distinct[list(exchange.work)].tolist() == counts


def test_all_chips_of_a_rank_get_the_outputs_of_all_its_tokens_in_their_order() -> None:
    dispatches = {3: dispatch([[0, 1]], 30.0), 2: dispatch([[2, 3], [0, 3]], 20.0)}
    empty = dispatch([], 0.0)
    empty = Dispatch(layer=7, hidden=empty.hidden, chosen=np.zeros((0, 2), dtype=np.int64))
    exchange = plan_exchange({**dispatches, 0: empty, 1: dispatch([[1, 2]], 10.0)}, even(4, 4))
    answers = {
        chip: ExpertRows(
            layer=7,
            rows=np.array(
                [expert_output(chip, work.rows[row]) for row in work.row_of_pair], dtype=np.float32
            ),
        )
        for chip, work in exchange.work.items()
    }

    combines = finish_exchange(exchange, answers, tp=2)

    assert sorted(combines) == [0, 1, 2, 3]
    assert combines[0] is combines[1]
    assert combines[0].expert_rows[..., 0].tolist() == [[21, 32]]
    assert combines[2].expert_rows[..., 0].tolist() == [[62, 83], [21, 87], [30, 61]]
