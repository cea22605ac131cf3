from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import lognorm

from loadgen.errors import OptionError
from loadgen.workloads.lengths import Lognormal, Uniform, parse_lengths
from loadgen.workloads.trace_lines import TOKENS_MAX
from loadgen.workloads.workload_spec import Lengths


def drawn(lengths: Lengths, count: int, seed: int = 0) -> list[int]:
    tokens: list[int] = lengths.draw(np.random.default_rng(seed), count).tolist()
    return tokens


def test_one_number_is_always_that_number() -> None:
    assert drawn(parse_lengths("512"), 3) == [512, 512, 512]


def test_a_uniform_length_is_the_share_of_the_way_from_end_to_end() -> None:
    lengths = parse_lengths("uniform:10-13")
    assert isinstance(lengths, Uniform)

    # four lengths: each has a quarter of [0, 1)
    uniforms = np.array([0.0, 0.249, 0.25, 0.5, 0.75, 1 - 2**-53])
    assert lengths.at(uniforms).tolist() == [10, 10, 11, 12, 13, 13]


def test_the_middle_of_a_lognormal_is_below_its_mean_by_the_known_factor() -> None:
    lengths = Lognormal(mean=1000, deviation=1000, most=10**6)

    # deviation = mean: sigma^2 = ln 2, so the median is mean / sqrt(2)
    assert lengths.at(np.array([0.5])).tolist() == [707]


def test_a_lognormal_is_moved_to_its_ends() -> None:
    lengths = parse_lengths("lognormal:100,100,50-200")
    assert isinstance(lengths, Lognormal)

    assert lengths.at(np.array([0.0, 1e-9, 1 - 1e-9])).tolist() == [50, 50, 200]
    assert Lognormal(mean=1e7, deviation=1e7).at(np.array([1 - 2**-53])).tolist() == [TOKENS_MAX]


@given(mean=st.floats(5, 1e5), ratio=st.floats(0.05, 3), share=st.floats(0.001, 0.999))
def test_a_lognormal_has_the_quantiles_of_scipys_with_that_mean_and_deviation(
    mean: float, ratio: float, share: float
) -> None:
    sigma = np.sqrt(np.log1p(ratio**2))
    reference = lognorm(s=sigma, scale=mean / np.exp(sigma**2 / 2))
    assert reference.mean() == pytest.approx(mean)
    assert reference.std() == pytest.approx(mean * ratio)

    (length,) = Lognormal(mean=mean, deviation=mean * ratio).at(np.array([share]))

    assert abs(length - np.clip(reference.ppf(share), 1, TOKENS_MAX)) <= 0.5 + 1e-6 * length


def test_draws_have_the_mean_and_deviation_that_were_asked_for() -> None:
    tokens = np.array(drawn(parse_lengths("lognormal:1000,500"), 20_000))

    # four standard errors of 20,000 draws: 1.4 % of the mean; the deviation's is wider, 5 %
    assert tokens.mean() == pytest.approx(1000, rel=0.014)
    assert tokens.std() == pytest.approx(500, rel=0.05)


@pytest.mark.parametrize("text", ["7", "uniform:2-900", "lognormal:300,200", "lognormal:9,9,2-30"])
def test_the_first_draws_are_the_same_however_many_there_are(text: str) -> None:
    lengths = parse_lengths(text)

    assert drawn(lengths, 1_000)[:10] == drawn(lengths, 10)
    assert lengths.words == text


@given(least=st.integers(1, TOKENS_MAX), steps=st.integers(0, 1_000), seed=st.integers(0, 99))
def test_uniform_draws_lie_within_their_ends(least: int, steps: int, seed: int) -> None:
    most = min(least + steps, TOKENS_MAX)

    tokens = drawn(parse_lengths(f"uniform:{least}-{most}"), 50, seed)

    assert all(least <= each <= most for each in tokens)


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "-5", "1.5", "many", "٣", f"{TOKENS_MAX + 1}"),
        *("uniform:", "uniform:5", "uniform:9-5", "uniform:0-5", "uniform:1-2-3"),
        *("lognormal:5", "lognormal:0,5", "lognormal:5,0", "lognormal:5,5,9-2", "lognormal:.,5"),
        *("lognormal:nan,5", "normal:5,5", "histogram:", "histogram"),
    ],
)
def test_what_is_no_distribution_is_refused_in_one_line_with_the_option(text: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_lengths(text, option="--input")

    assert str(refused.value).startswith("--input=")
    assert "\n" not in str(refused.value)


def test_a_histogram_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("5,1\n")

    assert drawn(parse_lengths(f"histogram:{path}"), 2) == [5, 5]
