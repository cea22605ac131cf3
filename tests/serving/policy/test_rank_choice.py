import itertools

import numpy as np
import pytest

from serving.policy.rank_choice import choose_rank


def choose(
    hits: list[int], loads: list[int], *, seats: str | None = None, up: str | None = None
) -> int | None:
    """Choose with seats and ranks up written as strings of 1 and 0; all, when not given."""
    ranks = len(hits)
    return choose_rank(
        hit_tokens=np.array(hits, dtype=np.int64),
        load_tokens=np.array(loads, dtype=np.int64),
        has_seat=np.array([flag == "1" for flag in seats or "1" * ranks]),
        is_up=np.array([flag == "1" for flag in up or "1" * ranks]),
    )


@pytest.mark.parametrize(
    ("hits", "loads", "chosen"),
    [
        ([0], [9], 0),  # one rank: there is no choice
        ([0, 0], [5, 5], 0),  # a tie: the lowest number
        ([0, 0, 0], [5, 4, 4], 1),  # no hits: the least load, then the lowest number
        ([0, 32, 0], [100, 131, 100], 1),  # a hit that saves more than its rank has more to do
        ([0, 32, 0], [100, 900, 100], 0),  # one block does not send it behind 800 tokens
        ([0, 2048, 0], [100, 900, 100], 1),  # 64 blocks do
        ([0, 32], [100, 132], 1),  # level: the one with less to compute
        ([32, 64, 64], [0, 32, 32], 1),
    ],
)
def test_a_hit_weighs_as_much_as_the_tokens_that_it_saves(
    hits: list[int], loads: list[int], chosen: int
) -> None:
    assert choose(hits, loads) == chosen


@pytest.mark.parametrize(
    ("seats", "up", "chosen"),
    [
        ("111", "111", 0),
        ("011", "111", 1),  # a seat comes before any load
        ("010", "101", 0),  # no seat on a rank that is up: the load decides
        ("111", "001", 2),
        ("110", "001", 2),
        ("111", "000", None),
    ],
)
def test_ranks_that_are_down_are_never_chosen_and_those_with_a_seat_come_first(
    seats: str, up: str, chosen: int | None
) -> None:
    assert choose([9, 0, 0], [0, 50, 99], seats=seats, up=up) == chosen


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_no_other_rank_is_better_in_any_small_case(ranks: int) -> None:
    words = ["".join(flags) for flags in itertools.product("01", repeat=ranks)]
    numbers = list(itertools.product(range(3), repeat=ranks))
    for hits, loads, seats, up in itertools.product(numbers, numbers, words, words):
        if ranks == 3 and seats not in ("000", "011", "111"):
            continue

        def worth(
            rank: int,
            hits: tuple[int, ...] = hits,
            loads: tuple[int, ...] = loads,
            seats: str = seats,
        ) -> tuple[bool, int, int, int]:
            return seats[rank] == "0", loads[rank] - hits[rank], -hits[rank], rank

        usable = [rank for rank in range(ranks) if up[rank] == "1"]
        best = min(usable, key=worth, default=None)
        assert choose(list(hits), list(loads), seats=seats, up=up) == best


@pytest.mark.parametrize(("hits", "loads"), [([], []), ([0], [0, 1]), ([0, 1], [0])])
def test_ranks_without_all_numbers_are_a_programming_error(
    hits: list[int], loads: list[int]
) -> None:
    with pytest.raises(AssertionError):
        choose(hits, loads)
