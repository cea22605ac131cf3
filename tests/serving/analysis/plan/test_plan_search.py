"""The smallest size that passes, found with few tests."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from serving.analysis.plan.plan_search import smallest_passing


class Passing:
    """Passes from a size on, and counts what it was asked."""

    def __init__(self, least: int) -> None:
        self.least = least
        self.asked: list[list[int]] = []

    def __call__(self, sizes: Sequence[int]) -> list[bool]:
        self.asked.append(list(sizes))
        return [size >= self.least for size in sizes]


def test_a_right_guess_is_settled_by_one_pair() -> None:
    test = Passing(7)

    assert smallest_passing(test, guess=7, most=50, width=2) == 7
    assert test.asked == [[6, 7]]


def test_a_guess_below_walks_up_and_above_walks_down_then_closes_in() -> None:
    low, high = Passing(30), Passing(30)

    assert smallest_passing(low, guess=20, most=99) == 30
    assert low.asked == [[20], [22], [24], [26], [28], [30], [29]]
    assert smallest_passing(high, guess=40, most=99) == 30
    assert high.asked == [[40], [37], [34], [31], [29], [30]]


def test_nothing_passes_up_to_the_most() -> None:
    test = Passing(11)

    assert smallest_passing(test, guess=3, most=10, width=2) is None
    assert max(map(max, test.asked)) == 10


@given(
    least=st.integers(1, 300),
    guess=st.integers(1, 300),
    most=st.integers(1, 300),
    width=st.integers(1, 4),
)
def test_it_finds_what_trying_all_sizes_finds(
    least: int, guess: int, most: int, width: int
) -> None:
    test = Passing(least)
    expected = next((size for size in range(1, most + 1) if size >= least), None)

    assert smallest_passing(test, guess=guess, most=most, width=width) == expected
    flat = [size for sizes in test.asked for size in sizes]
    assert len(flat) == len(set(flat)), "no size is tested twice"
    assert all(1 <= size <= most and len(sizes) <= width for sizes in test.asked for size in sizes)


@given(passing=st.sets(st.integers(1, 40)), guess=st.integers(1, 40), width=st.integers(1, 3))
def test_even_where_chance_plays_in_the_size_below_failed(
    passing: set[int], guess: int, width: int
) -> None:
    found = smallest_passing(
        lambda sizes: [size in passing for size in sizes], guess=guess, most=40, width=width
    )

    if found is not None:
        assert found in passing
        assert found == 1 or found - 1 not in passing
