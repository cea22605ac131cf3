import numpy as np

from loadgen.workloads.azure2023 import read_azure2023
from loadgen.workloads.trace_file import BUNDLED_TRACE
from tests.loadgen.workloads.sample_trace import ROWS, sample_text


def test_the_bundled_trace_is_what_its_script_makes_byte_for_byte() -> None:
    assert sample_text().encode() == BUNDLED_TRACE.read_bytes()


def test_the_bundled_trace_is_read_and_resembles_the_recorded_one() -> None:
    rows = read_azure2023(BUNDLED_TRACE)
    gaps_s = np.diff(rows.arrivals_ns) / 1e9

    assert len(rows) == ROWS
    # Means of 2,000 draws: three standard errors are 6.4 %, 5.2 % and 6.7 %.
    assert np.isclose(rows.input_tokens.mean(), 1155, rtol=0.064)
    assert np.isclose(rows.output_tokens.mean(), 211, rtol=0.052)
    assert np.isclose(gaps_s.mean(), 1 / 5.53, rtol=0.067)
    assert np.isclose(gaps_s.std() / gaps_s.mean(), 1.0, atol=0.1)  # Poisson


def test_another_seed_makes_another_trace_of_as_many_rows() -> None:
    first, second = sample_text(rows=50, seed=1), sample_text(rows=50, seed=2)

    assert first != second
    assert first.count("\n") == second.count("\n") == 51
