import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.expert_loads import ExpertLoads
from emulator.ultraserver.half_batches import half_batches, half_loads
from tests.emulator.ultraserver.tiny_steps import Row, batch_of

rows_strategy = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 20)), max_size=12
)


def test_every_second_request_of_a_rank_the_longest_first_by_hand() -> None:
    batch = batch_of(2, [(0, 1, 5), (1, 2, 0), (0, 7, 0), (1, 3, 3), (0, 1, 6)])

    halves = half_batches(batch)

    assert halves is not None
    first, second = halves
    assert first.rank.tolist() == [0, 0, 1]
    assert first.new_tokens.tolist() == [7, 1, 3]
    assert first.context_tokens.tolist() == [0, 6, 3]
    assert first.logit_rows.tolist() == [2, 1]
    assert second.new_tokens.tolist() == [1, 2]
    assert second.logit_rows.tolist() == [1, 1]


@pytest.mark.parametrize("rows", [[], [(0, 1, 5)], [(0, 1, 5), (0, 1, 6), (1, 4, 0)]])
def test_a_rank_with_one_request_makes_no_halves(rows: list[Row]) -> None:
    assert half_batches(batch_of(2, rows)) is None


@given(rows=rows_strategy)
def test_halves_share_out_every_request_and_every_logit(rows: list[Row]) -> None:
    batch = batch_of(3, rows)
    halves = half_batches(batch)
    if halves is None:
        counts = np.bincount(batch.rank, minlength=3)
        assert not len(rows) or 1 in counts
        return

    both = [
        (rank, new, context)
        for half in halves
        for rank, new, context in zip(
            half.rank.tolist(), half.new_tokens.tolist(), half.context_tokens.tolist(), strict=True
        )
    ]
    assert sorted(both) == sorted(rows)
    assert sum(half.logit_rows for half in halves).tolist() == batch.logit_rows.tolist()
    counts = [np.bincount(half.rank, minlength=3) for half in halves]
    assert set((counts[0] - counts[1]).tolist()) <= {0, 1}


def test_half_of_the_counted_loads_hit_no_more_experts_than_they_have_pairs() -> None:
    loads = ExpertLoads(
        pairs=np.array([[6, 3]]), distinct=np.array([[2, 3]]), sent=np.full((1, 2, 2), 4)
    )

    half = half_loads(loads)

    assert half.pairs.tolist() == [[3, 1.5]]
    assert half.distinct.tolist() == [[2, 1.5]]
    assert half.sent.tolist() == [[[2, 2], [2, 2]]]
