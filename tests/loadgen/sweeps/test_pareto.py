from hypothesis import given
from hypothesis import strategies as st

from loadgen.sweeps.conclusion import pareto_front

POINTS = st.lists(st.none() | st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


def test_a_point_that_another_beats_in_both_is_left_out() -> None:
    # (interactivity, tokens/s/MW): the third is slower and costs more than the second.
    values = [(10.0, 900.0), (20.0, 700.0), (15.0, 600.0), None, (30.0, 100.0)]

    assert pareto_front(values) == (0, 1, 4)


@given(POINTS)
def test_it_is_what_comparing_all_pairs_says(values: list[tuple[int, int] | None]) -> None:
    def beats(one: tuple[int, int], other: tuple[int, int]) -> bool:
        return one[0] >= other[0] and one[1] >= other[1] and one != other

    known = [value for value in values if value is not None]
    best = {value for value in known if not any(beats(other, value) for other in known)}
    front = pareto_front(values)

    assert [values[position] for position in front] == sorted(best)
