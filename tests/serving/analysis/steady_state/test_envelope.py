import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.analysis.steady_state.envelope import Envelope, Interval, intervals_where

figures = st.integers(1, 12).map(float)
points = st.lists(st.tuples(figures, figures), min_size=1, max_size=20)


def test_the_envelope_of_five_points_by_hand() -> None:
    # (2, 5) is beaten by (3, 6); (1, 9) and (1, 8) have the same x; (4, 1) reaches farthest.
    envelope = Envelope.of([2, 3, 1, 1, 4], [5, 6, 8, 9, 1])

    assert envelope.x.tolist() == [1, 3, 4]
    assert envelope.y.tolist() == [9, 6, 1]
    assert envelope.chosen.tolist() == [3, 1, 4]
    assert envelope.reach == 4


def test_between_points_it_is_straight_before_the_first_flat_after_the_last_nothing() -> None:
    envelope = Envelope.of([1, 3], [9, 5])

    heights = envelope.at(np.array([0.5, 1.0, 2.0, 3.0, 3.1]))

    assert heights[:4].tolist() == [9, 9, 7, 5]
    assert np.isnan(heights[4])


@given(points)
def test_a_point_is_on_the_envelope_exactly_when_no_point_beats_it(pairs) -> None:
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]

    envelope = Envelope.of(xs, ys)

    def beaten(x: float, y: float) -> bool:
        return any(a >= x and b >= y and (a, b) != (x, y) for a, b in pairs)

    unbeaten = {(x, y) for x, y in pairs if not beaten(x, y)}
    assert set(zip(envelope.x.tolist(), envelope.y.tolist(), strict=True)) == unbeaten
    assert (np.diff(envelope.x) > 0).all()
    assert (np.diff(envelope.y) < 0).all()
    assert [pairs[index] for index in envelope.chosen.tolist()] == list(
        zip(envelope.x.tolist(), envelope.y.tolist(), strict=True)
    )


@given(points)
def test_no_point_lies_above_the_envelope(pairs) -> None:
    xs, ys = np.array([x for x, _ in pairs]), np.array([y for _, y in pairs])

    assert (Envelope.of(xs, ys).at(xs) >= ys).all()


@given(points, points)
def test_more_points_never_lower_it(some, more) -> None:
    few = Envelope.of([x for x, _ in some], [y for _, y in some])
    all_of_them = some + more
    many = Envelope.of([x for x, _ in all_of_them], [y for _, y in all_of_them])

    # At the points of the fewer: between them a new point may bend the line to either side.
    assert (many.at(few.x) >= few.y).all()


def test_with_an_affine_step_time_the_lines_of_both_envelopes_are_exact() -> None:
    # A step of 2 ms + 0.1 ms for each request, sampled at 1, 4 and 16 requests.
    def seconds(batch):
        return 0.002 + 0.0001 * np.asarray(batch, dtype=np.float64)

    sampled, every = np.array([1, 4, 16]), np.arange(1, 17)
    by_interactivity = Envelope.of(1 / seconds(sampled), sampled / seconds(sampled))
    by_users = Envelope.of_users(sampled.astype(float), 1 / seconds(sampled))

    assert by_interactivity.at(1 / seconds(every)) == pytest.approx(every / seconds(every))
    assert -by_users.at(every.astype(float)) == pytest.approx(seconds(every))


def test_fewer_users_than_any_point_has_get_what_the_first_point_gives() -> None:
    envelope = Envelope.of_users([4, 8], [100, 60])

    heights = envelope.at(np.array([1.0, 4.0, 8.0]))
    assert (-1 / heights).tolist() == pytest.approx([100, 100, 60])
    assert np.isnan(envelope.at(np.array([9.0])))


def test_intervals_are_the_runs_of_what_holds() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])

    found = intervals_where(np.array([True, True, False, False, True]), x)

    assert found == (Interval(low=1, high=2), Interval(low=5, high=5))
    assert intervals_where(np.zeros(5, dtype=np.bool_), x) == ()


@pytest.mark.parametrize(("x", "y"), [([], []), ([1.0], [1.0, 2.0]), ([np.nan], [1.0])])
def test_what_is_no_set_of_points_is_refused(x, y) -> None:
    with pytest.raises(ValueError, match="an envelope is of"):
        Envelope.of(x, y)
