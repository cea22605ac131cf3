import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq

from loadgen.arrivals.piecewise_linear import PiecewiseLinear
from loadgen.arrivals.rate_shape import RateShape, Sine, parse_rate
from loadgen.errors import LoadError
from tests.loadgen.arrivals.rate_at import rate_at


@pytest.mark.parametrize(
    ("text", "time_s", "rate_per_s", "arrivals"),
    [
        # 4 a second for 3 s: 12
        ("4", 3.0, 4.0, 12.0),
        # from 0 to 10 a second within 10 s: 5 a second after 5 s, 1/2 x 5 x 5 arrivals
        ("ramp:0-10/10s", 5.0, 5.0, 12.5),
        # the same after 12 s: the triangle of 50, then 2 s at 10
        ("ramp:0-10/10s", 12.0, 10.0, 70.0),
        # a ramp down: 10 to 0, half way: 10 x 5 - 1/2 x 5 x 5
        ("ramp:10-0/10s", 5.0, 5.0, 37.5),
        # 2 a second for a minute, then in the next one up to 10: 120 + 30 x (2 + 6) / 2
        ("series:0s=2,60s=2,2m=10", 90.0, 6.0, 240.0),
        # a step at 10 s, from 1 to 3: the rate after it counts
        ("series:0s=1,10s=1,10s=3", 10.0, 3.0, 10.0),
        ("series:0s=1,10s=1,10s=3", 12.0, 3.0, 16.0),
        # a sine of 4 +- 2: at a quarter of the period at its peak, after a whole one its mean
        ("sine:4,2,60s", 15.0, 6.0, 60.0 + 2 * 60 / (2 * np.pi)),
        ("sine:4,2,60s", 60.0, 4.0, 240.0),
    ],
)
def test_a_rate_is_read_and_summed_as_by_hand(
    text: str, time_s: float, rate_per_s: float, arrivals: float
) -> None:
    shape = parse_rate(text)

    assert rate_at(shape, np.array([time_s])) == pytest.approx([rate_per_s])
    assert shape.cumulative(np.array([time_s])) == pytest.approx([arrivals])
    assert shape.inverse(np.array([arrivals])) == pytest.approx([time_s])


def test_what_falls_due_where_a_pause_begins_is_due_when_it_is_over() -> None:
    shape = parse_rate("series:0s=1,10s=1,10s=0,50s=0,50s=1")

    assert shape.inverse(np.array([9.0, 10.0, 11.0])).tolist() == [9.0, 50.0, 51.0]
    assert parse_rate("series:0s=0,5s=0,5s=1").inverse(np.array([0.0])).tolist() == [5.0]


def test_more_arrivals_than_a_rate_that_ends_at_zero_has_never_come() -> None:
    shape = parse_rate("ramp:10-0/10s")

    assert shape.inverse(np.array([49.0, 50.0, 51.0])).tolist()[1:] == [np.inf, np.inf]
    # One is left where the triangle that is left, 1/2 x^2, is 1.
    assert shape.inverse(np.array([49.0]))[0] == pytest.approx(10 - np.sqrt(2))


def test_what_is_written_as_times_ends_with_them_and_the_rest_does_not() -> None:
    texts = ("4", "sine:4,2,60s", "ramp:1-2/1m", "series:0=1,90=2")

    assert [parse_rate(text).end_s for text in texts] == [None, None, 60.0, 90.0]


def test_a_file_of_rates_is_the_same_as_the_points_written_out(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    path.write_text("seconds,rate\n0,2\n\n60,10\n86400,1.5\n")

    found, written = parse_rate(f"series:{path}"), parse_rate("series:0s=2,60s=10,24h=1.5")

    assert isinstance(found, PiecewiseLinear)
    assert isinstance(written, PiecewiseLinear)
    assert (found.times_s, found.rates_per_s) == (written.times_s, written.rates_per_s)


@pytest.mark.parametrize(
    ("rows", "where", "reason"),
    [
        ("seconds,rate\n0,2\n60\n", ":3", "1 columns"),
        ("0,2\n60,ten\n", ":2", "'ten' is not a number from 0 on"),
        ("0,2\n60,nan\n", ":2", "'nan' is not a number from 0 on"),
        ("0,2\n60,3\n30,4\n", ":3", "earlier than the row before"),
        ("0,2\n60,-1\n", ":2", "'-1' is not a number from 0 on"),
        ("10,2\n", ":1", "not at 0 s"),
        ("0,0\n10,0\n", "", "no row with a rate above 0"),
        ("", "", "no row"),
        ("seconds,rate\nsix,rate\n", ":2", "'six' is not a number from 0 on"),
    ],
)
def test_a_malformed_row_is_refused_with_file_line_and_reason(
    tmp_path: Path, rows: str, where: str, reason: str
) -> None:
    path = tmp_path / "rates.csv"
    path.write_text(rows)

    with pytest.raises(LoadError, match=f"^{re.escape(str(path))}{where}: .*{reason}"):
        parse_rate(f"series:{path}")


def test_a_file_that_is_not_there_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"nowhere\.csv: cannot be read"):
        parse_rate(f"series:{tmp_path / 'nowhere.csv'}")


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "-1", "inf", "nan", "fast", "square:1,2,3s", "sine:4,2", "sine:4,5,60s"),
        *("sine:0,0,60s", "sine:4,2,0s", "sine:4,-1,60s", "ramp:1-2", "ramp:1/60s", "ramp:0-0/60s"),
        *("ramp:1-2/soon", "series:0s=1,60s", "series:5s=1", "series:0s=1,60s=2,30s=3"),
        "series:0s=-1",
    ],
)
def test_a_rate_of_no_known_form_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(LoadError, match=r"^--rate=.*: expected a number above 0, sine:") as refused:
        parse_rate(text)

    assert "\n" not in str(refused.value)


rates = st.floats(0.0, 1e4).map(lambda rate: round(rate, 3))
widths = st.one_of(st.just(0.0), st.floats(0.01, 1e4).map(lambda width: round(width, 2)))
series = st.lists(st.tuples(widths, rates), min_size=1, max_size=8).map(
    lambda points: PiecewiseLinear(
        times_s=tuple(np.cumsum([0.0, *(width for width, _ in points[1:])])),
        rates_per_s=tuple(rate for _, rate in points),
    )
)
sines = st.builds(
    lambda mean, share, period: Sine(
        mean_per_s=mean, amplitude_per_s=mean * share, period_s=period
    ),
    st.floats(0.01, 1e4),
    st.floats(0.0, 1.0),
    st.floats(0.1, 1e5),
)


@given(shape=st.one_of(series, sines), times=st.lists(st.floats(0, 1e5), min_size=1, max_size=20))
def test_the_inverse_undoes_the_sum_wherever_the_rate_is_not_zero(
    shape: RateShape, times: list[float]
) -> None:
    time_s = np.sort(np.array(times))
    arrivals = shape.cumulative(time_s)

    back_s = shape.inverse(arrivals)

    assert (np.diff(arrivals) >= -1e-9 * (1 + arrivals[:-1])).all()
    known = np.isfinite(back_s)
    assert np.allclose(shape.cumulative(back_s[known]), arrivals[known], rtol=1e-9, atol=1e-6)
    assert (shape.cumulative(np.full((~known).sum(), 1e7)) <= arrivals[~known] * (1 + 1e-12)).all()


@given(shape=st.one_of(series, sines), end_s=st.floats(0.01, 500))
def test_the_sum_is_what_numerical_integration_of_the_rate_finds(
    shape: RateShape, end_s: float
) -> None:
    corners = shape.times_s if isinstance(shape, PiecewiseLinear) else ()
    inside = [at for at in corners if 0 < at < end_s]
    edges = [0.0, *inside, end_s]
    if isinstance(shape, Sine) and end_s / shape.period_s > 20:
        return  # quadrature over many periods is the less exact of the two
    found = sum(
        quad(lambda t: float(rate_at(shape, np.array(t))), low, high, limit=200)[0]
        for low, high in pairwise(edges)
    )

    assert shape.cumulative(np.array(end_s)) == pytest.approx(found, rel=1e-6, abs=1e-6)


@given(shape=sines, share=st.floats(0.0, 50.0))
def test_the_inverse_of_a_sine_is_the_root_that_scipy_finds(shape: Sine, share: float) -> None:
    arrivals = share * shape.mean_per_s * shape.period_s
    high = (share + 1) * shape.period_s
    root = brentq(lambda t: float(shape.cumulative(np.array(t))) - arrivals, 0.0, high)

    # Where the rate touches 0 the sum is flat and a root is known to its cube root only.
    found = shape.inverse(np.array([arrivals]))
    assert np.isclose(found[0], root, rtol=1e-6, atol=1e-4 * shape.period_s)
