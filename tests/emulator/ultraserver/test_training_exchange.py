"""The exchange of a training micro-batch, against sums that are added one pair at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.chip.training_effects import (
    ExpertGradients,
    ExpertSums,
    GradientDispatch,
    TrainingDispatch,
)
from emulator.specs.placement import ExpertPlacement
from emulator.ultraserver.exchange import ExpertMap
from emulator.ultraserver.training_exchange import TrainingExchange, summed_in_order

F32 = np.float32


def experts(count: int, chips: int) -> ExpertMap:
    return ExpertMap(ExpertPlacement.even(layers=2, experts=count, chips=chips, ep=chips))


@pytest.fixture
def by_hand() -> TrainingExchange:
    """Three tokens of two chips; chip 0 has experts 0 and 1, chip 1 has 2 and 3."""
    return TrainingExchange(
        {
            0: TrainingDispatch(
                layer=1,
                hidden=np.array([[1], [2]], F32),
                chosen=np.array([[0, 3], [0, 1]]),
                weights=np.array([[0.1, 0.9], [0.2, 0.8]], F32),
            ),
            1: TrainingDispatch(
                layer=1,
                hidden=np.array([[5]], F32),
                chosen=np.array([[1, 2]]),
                weights=np.array([[0.3, 0.7]], F32),
            ),
        },
        experts(4, 2),
    )


def test_each_chip_is_sent_a_token_once_and_its_pairs_by_expert(by_hand: TrainingExchange) -> None:
    first, second = by_hand.work[0], by_hand.work[1]
    assert first.rows.tolist() == [[1], [2], [5]]
    assert first.row_of_pair.tolist() == [0, 1, 1, 2]  # expert 0: two rows, expert 1: two rows
    assert first.counts.tolist() == [2, 2]
    assert first.weights.tolist() == pytest.approx([0.1, 0.2, 0.8, 0.3])
    assert second.rows.tolist() == [[1], [5]]
    assert second.row_of_pair.tolist() == [1, 0]  # expert 2 before expert 3
    assert second.weights.tolist() == pytest.approx([0.7, 0.9])
    assert by_hand.expert_share.tolist() == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3])


def test_sums_of_a_token_are_added_and_gradients_go_the_same_ways(
    by_hand: TrainingExchange,
) -> None:
    sums = by_hand.combine(
        {
            1: ExpertSums(layer=1, rows=np.array([[100], [500]], F32)),
            0: ExpertSums(layer=1, rows=np.array([[10], [20], [50]], F32)),
        }
    )
    assert sums[0].rows.tolist() == [[110], [20]]
    assert sums[1].rows.tolist() == [[550]]

    back = by_hand.backward(
        {
            1: GradientDispatch(layer=1, rows=np.array([[7]], F32)),
            0: GradientDispatch(layer=1, rows=np.array([[3], [4]], F32)),
        }
    )
    assert back[0].rows.tolist() == [[3], [4], [7]]
    assert back[1].rows.tolist() == [[3], [7]]

    gradients = by_hand.combine_gradients(
        {
            0: ExpertGradients(
                layer=1, rows=np.array([[1], [2], [3]], F32), weights=np.array([1, 2, 3, 4], F32)
            ),
            1: ExpertGradients(
                layer=1, rows=np.array([[10], [30]], F32), weights=np.array([5, 6], F32)
            ),
        },
        balance_scale=0.5,
    )
    assert gradients[0].rows.tolist() == [[11], [2]]
    assert gradients[1].rows.tolist() == [[33]]
    assert gradients[0].weights.tolist() == [[1, 6], [2, 3]]
    assert gradients[1].weights.tolist() == [[4, 5]]
    assert gradients[0].balance_scale == 0.5


@given(
    seed=st.integers(0, 2**31),
    chips=st.integers(1, 5),
    tokens=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    k=st.integers(1, 3),
)
def test_sums_and_gradients_reach_the_tokens_they_belong_to(
    seed: int, chips: int, tokens: list[int], k: int
) -> None:
    """Every pair of a token and an expert is given numbers that tell where it came from."""
    rng = np.random.default_rng(seed)
    count, sources = 7, min(chips, len(tokens))
    dispatches = {}
    for chip in range(sources):
        chosen = np.sort([rng.permutation(count)[:k] for _ in range(tokens[chip])], axis=1)
        dispatches[chip] = TrainingDispatch(
            layer=0,
            hidden=(100 * chip + np.arange(tokens[chip]))[:, None].astype(F32),
            chosen=chosen,
            weights=rng.random((tokens[chip], k), dtype=F32),
        )
    exchange = TrainingExchange(dispatches, experts(count, chips))

    sums, gradients = {}, {}
    for chip, work in exchange.work.items():
        # An expert's output is its token's row times its own number, which the slot tells.
        held = ExpertPlacement.even(layers=2, experts=count, chips=chips, ep=chips)
        expert = np.repeat(held.expert_of_slot[0, chip], work.counts)
        out = (work.rows[work.row_of_pair, 0] * (expert + 1))[:, None]
        total = np.zeros_like(work.rows)
        np.add.at(total, work.row_of_pair, out * work.weights[:, None])
        sums[chip] = ExpertSums(layer=0, rows=total)
        gradients[chip] = ExpertGradients(layer=0, rows=total, weights=out[:, 0])
    combined = exchange.combine(sums)
    returned = exchange.combine_gradients(gradients, balance_scale=1.0)

    for chip, sent in dispatches.items():
        out = sent.hidden * (sent.chosen + 1)  # [tokens, k]
        expected = (out * sent.weights).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(combined[chip].rows, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(returned[chip].rows, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(returned[chip].weights, out)
    assert exchange.expert_share.sum() == pytest.approx(k)


def test_gradients_are_added_from_the_first_chip_to_the_last() -> None:
    parts = [np.array([value], F32) for value in (1.0, 2.0**-24, 2.0**-24)]

    assert summed_in_order(parts)[0] == 1.0  # in any other order the small ones would count
    assert parts[0][0] == 1.0
