import numpy as np

from loadgen.sample_trace import BUNDLED_TRACE, ROWS, Lengths, sample_text
from loadgen.trace import read_azure2023


def test_the_bundled_trace_is_what_its_script_makes_byte_for_byte() -> None:
    assert sample_text().encode() == BUNDLED_TRACE.read_bytes()


def test_the_bundled_trace_is_read_and_resembles_the_recorded_one() -> None:
    rows = read_azure2023(BUNDLED_TRACE)
    gaps_s = np.diff([row.arrival_ns for row in rows]) / 1e9

    assert len(rows) == ROWS
    # Means of 2,000 draws: three standard errors are 6.4 %, 5.2 % and 6.7 %.
    assert np.isclose(np.mean([row.input_tokens for row in rows]), 1155, rtol=0.064)
    assert np.isclose(np.mean([row.output_tokens for row in rows]), 211, rtol=0.052)
    assert np.isclose(gaps_s.mean(), 1 / 5.53, rtol=0.067)
    assert np.isclose(gaps_s.std() / gaps_s.mean(), 1.0, atol=0.1)  # Poisson


def test_the_middle_of_a_lognormal_is_below_its_mean_by_the_known_factor() -> None:
    lengths = Lengths(mean_tokens=1000, deviation_tokens=1000, min_tokens=1, max_tokens=10**6)

    # deviation = mean: sigma^2 = ln 2, so the median is mean / sqrt(2)
    assert lengths.draw([0.5]) == [707]


def test_lengths_are_cut_at_both_ends() -> None:
    lengths = Lengths(mean_tokens=100, deviation_tokens=100, min_tokens=50, max_tokens=200)

    assert lengths.draw([1e-9, 1 - 1e-9]) == [50, 200]


def test_another_seed_makes_another_trace_of_as_many_rows() -> None:
    first, second = sample_text(rows=50, seed=1), sample_text(rows=50, seed=2)

    assert first != second
    assert first.count("\n") == second.count("\n") == 51
