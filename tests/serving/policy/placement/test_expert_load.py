import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.placement.chip_loads import ExpertWindow


def test_a_window_of_two_steps_forgets_the_first_of_three() -> None:
    load = ExpertWindow(window_steps=2, layers=1, experts=3)

    for counts in ([[1, 0, 0]], [[0, 2, 0]], [[0, 3, 4]]):
        load.add(np.array(counts))

    assert load.total().tolist() == [[0, 5, 4]]
    assert load.steps == 2


@given(
    window=st.integers(1, 5),
    steps=st.lists(st.lists(st.integers(0, 2**40), min_size=6, max_size=6), max_size=12),
)
def test_the_total_is_the_sum_of_the_last_steps_exactly(
    window: int, steps: list[list[int]]
) -> None:
    load = ExpertWindow(window_steps=window, layers=2, experts=3)
    for done, counts in enumerate(steps, start=1):
        load.add(np.array(counts).reshape(2, 3))
        last = np.array(steps[max(0, done - window) : done]).sum(axis=0).reshape(2, 3)

        assert load.total().tolist() == last.tolist()
        assert load.total().tolist() == load.total_slowly().tolist()
        assert load.steps == min(done, window)


@given(
    rows=st.integers(1, 4),
    row_steps=st.integers(1, 4),
    steps=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2**40)), max_size=20),
)
def test_steps_of_a_row_are_added_together_and_leave_together(
    rows: int, row_steps: int, steps: list[tuple[int, int]]
) -> None:
    load = ExpertWindow(window_steps=rows * row_steps, layers=1, experts=1, row_steps=row_steps)
    counts: list[int] = []  # of each step, with all of those added together at the first of them
    for wanted, count in steps:
        together = min(wanted, load.row_left)
        load.add(np.array([[count]]), steps=together)
        counts += [count, *[0] * (together - 1)]
        begun = -(-len(counts) // row_steps)
        kept = counts[max(0, begun - rows) * row_steps :]

        assert load.total().tolist() == load.total_slowly().tolist() == [[sum(kept)]]
        assert load.steps == len(kept)
        assert load.row_left == row_steps - len(counts) % row_steps


def test_more_steps_than_a_row_takes_are_refused() -> None:
    load = ExpertWindow(window_steps=4, layers=1, experts=1, row_steps=2)

    with pytest.raises(ValueError, match="from 1 to 2 steps go into the row, not 3"):
        load.add(np.array([[1]]), steps=3)


def test_an_empty_window_holds_nothing() -> None:
    load = ExpertWindow(window_steps=3, layers=1, experts=2)

    assert (load.steps, load.total().tolist()) == (0, [[0, 0]])


def test_what_is_handed_in_or_out_is_not_the_windows_own() -> None:
    load = ExpertWindow(window_steps=2, layers=1, experts=2)
    counts = np.array([[1, 2]])
    load.add(counts)
    counts[:] = 9
    load.total()[:] = 9

    assert load.total().tolist() == load.total_slowly().tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (np.zeros((2, 1), dtype=np.int64), r"\(1, 2\), not int64\(2, 1\)"),
        (np.zeros((1, 2)), "not float64"),
        (np.array([[1, -1]]), "at least 0, not -1"),
    ],
)
def test_counts_that_are_none_are_refused_and_change_nothing(
    counts: np.ndarray, words: str
) -> None:
    load = ExpertWindow(window_steps=2, layers=1, experts=2)

    with pytest.raises(ValueError, match=words):
        load.add(counts)

    assert (load.steps, load.total().tolist()) == (0, [[0, 0]])
