from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.chip.effects import Dispatch, ExpertRows
from emulator.ultraserver.exchange import Exchange, ExpertMap, finish_exchange, plan_exchange

HIDDEN = 3


def dispatch(chosen: list[list[int]], first_value: float = 0.0, layer: int = 7) -> Dispatch:
    """Tokens whose hidden states are first_value, first_value + 1, ... in every element."""
    values = first_value + np.arange(len(chosen), dtype=np.float32)
    hidden = np.repeat(values[:, None], HIDDEN, axis=1)
    return Dispatch(layer=layer, hidden=hidden, chosen=np.array(chosen, dtype=np.int64))


class TestExpertMap:
    def test_experts_lie_side_by_side(self) -> None:
        experts = ExpertMap.contiguous(6, 3)

        assert experts.chip_of_expert.tolist() == [0, 0, 1, 1, 2, 2]
        assert experts.slot_of_expert.tolist() == [0, 1, 0, 1, 0, 1]
        assert experts.experts_per_chip == 2
        assert [experts.experts_of(chip) for chip in range(3)] == [[0, 1], [2, 3], [4, 5]]

    def test_experts_of_a_chip_are_in_the_order_of_its_slots(self) -> None:
        experts = ExpertMap(
            chip_of_expert=np.array([1, 0, 1, 0]),
            slot_of_expert=np.array([1, 0, 0, 1]),
            experts_per_chip=2,
        )

        assert experts.experts_of(0) == [1, 3]
        assert experts.experts_of(1) == [2, 0]

    def test_experts_that_do_not_divide_are_a_programming_error(self) -> None:
        with pytest.raises(AssertionError):
            ExpertMap.contiguous(7, 2)


class TestByHand:
    @pytest.fixture
    def exchange(self) -> Exchange:
        """Ranks 0 and 2 dispatch two tokens and one; experts 0 and 1 on chip 0, 2 and 3 on 1."""
        return plan_exchange(
            {2: dispatch([[1, 3]], 50.0), 0: dispatch([[1, 2], [0, 1]], 10.0)},
            ExpertMap.contiguous(4, 2),
            2,
        )

    def test_each_chip_gets_the_tokens_of_its_experts_once_and_pairs_sorted_by_expert(
        self, exchange: Exchange
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
        assert exchange.pairs_of_chip.tolist() == [4, 2]

    def test_answers_return_to_their_token_in_the_order_of_its_choices(
        self, exchange: Exchange
    ) -> None:
        def answer(*values: float) -> ExpertRows:
            return ExpertRows(layer=7, rows=np.repeat(np.float32(values)[:, None], HIDDEN, axis=1))

        combines = finish_exchange(exchange, {1: answer(104, 105), 0: answer(100, 101, 102, 103)})

        assert sorted(combines) == [0, 2]
        assert combines[0].layer == combines[2].layer == 7
        assert combines[0].expert_rows.shape == (2, 2, HIDDEN)
        assert combines[0].expert_rows[..., 0].tolist() == [[101, 104], [100, 102]]
        assert combines[2].expert_rows[..., 0].tolist() == [[103, 105]]

    def test_a_chip_whose_experts_nobody_chose_is_not_asked(self) -> None:
        exchange = plan_exchange({1: dispatch([[4, 5]])}, ExpertMap.contiguous(6, 3), 3)

        assert list(exchange.work) == [2]
        assert exchange.pairs_of_chip.tolist() == [0, 0, 2]


@dataclass(frozen=True)
class Case:
    """Dispatches of some ranks, and where the experts live."""

    dispatches: dict[int, Dispatch]
    experts: ExpertMap
    chips: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    chips = draw(st.integers(1, 5))
    per_chip = draw(st.integers(1, 4))
    count = chips * per_chip
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    places = rng.permutation(count)
    experts = ExpertMap(
        chip_of_expert=places // per_chip,
        slot_of_expert=places % per_chip,
        experts_per_chip=per_chip,
    )
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
    return Case(dispatches, experts, chips)


def expert_output(expert: int, row: np.ndarray) -> np.ndarray:
    """Something that tells every expert and every row apart."""
    return row * np.float32(expert + 1) + np.float32(expert)


@given(cases())
def test_every_rank_gets_what_asking_each_expert_for_each_token_gives(case: Case) -> None:
    exchange = plan_exchange(case.dispatches, case.experts, case.chips)

    answers = {}
    for chip, work in exchange.work.items():
        here = case.experts.experts_of(chip)
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

    exchange = plan_exchange(dispatches, ExpertMap.contiguous(8, 2), 2)

    for work in exchange.work.values():
        ends = np.cumsum(work.counts)
        for start, end in zip(ends - work.counts, ends, strict=True):
            sent = work.rows[work.row_of_pair[start:end], 0]
            assert (np.diff(sent) > 0).all()


@given(cases())
def test_a_token_travels_once_to_each_chip_that_holds_one_of_its_experts(case: Case) -> None:
    exchange = plan_exchange(case.dispatches, case.experts, case.chips)

    needed = np.zeros((case.chips, 0), dtype=bool)  # [chips, tokens]
    for rank in sorted(case.dispatches):
        chips_of_token = case.experts.chip_of_expert[case.dispatches[rank].chosen]
        here = [(chips_of_token == chip).any(axis=1) for chip in range(case.chips)]
        needed = np.concatenate([needed, here], axis=1)
    sent = [
        len(exchange.work[chip].rows) if chip in exchange.work else 0 for chip in range(case.chips)
    ]
    assert sent == needed.sum(axis=1).tolist()
    pairs = sum(sent.chosen.size for sent in case.dispatches.values())
    assert exchange.pairs_of_chip.sum() == pairs
