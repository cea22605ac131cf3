import itertools

import pytest

from serving.policy.rank_choice import choose_rank


@pytest.mark.parametrize(
    ("hits", "loads", "chosen"),
    [
        ([0], [9], 0),  # one rank: there is no choice
        ([0, 0], [5, 5], 0),  # a tie: the lowest number
        ([0, 0, 0], [5, 4, 4], 1),  # no hits: the least load, then the lowest number
        ([0, 32, 0], [0, 900, 0], 1),  # any hit wins over any load
        ([32, 64, 64], [0, 900, 800], 2),  # the longest hit, then the least load
        ([64, 32, 64], [7, 0, 7], 0),
    ],
)
def test_the_longest_prefix_hit_comes_first_then_the_least_load_then_the_lowest_number(
    hits: list[int], loads: list[int], chosen: int
) -> None:
    assert choose_rank(hits, loads) == chosen


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_no_other_rank_is_better_in_any_small_case(ranks: int) -> None:
    cases = itertools.product(itertools.product(range(3), repeat=ranks), repeat=2)
    for hits, loads in cases:
        chosen = choose_rank(hits, loads)
        for other in range(ranks):
            if hits[other] != hits[chosen]:
                assert hits[other] < hits[chosen], (hits, loads)
            elif loads[other] != loads[chosen]:
                assert loads[other] > loads[chosen], (hits, loads)
            else:
                assert other >= chosen, (hits, loads)


@pytest.mark.parametrize(("hits", "loads"), [([], []), ([0], [0, 1]), ([0, 1], [0])])
def test_ranks_without_both_numbers_are_a_programming_error(
    hits: list[int], loads: list[int]
) -> None:
    with pytest.raises(AssertionError):
        choose_rank(hits, loads)
