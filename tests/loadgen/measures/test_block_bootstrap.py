import numpy as np
import pytest
from scipy import stats

from loadgen.measures.intervals import variance_factor
from loadgen.measures.replicas import (
    REPLICATES,
    block_weights,
    replicated_means,
    replicated_percentiles,
)
from loadgen.measures.samples import CELLS, Samples


def test_every_other_run_is_made_of_whole_blocks_and_as_long() -> None:
    weights = block_weights(CELLS, seed=0)

    assert weights.shape == (REPLICATES, CELLS)
    assert (weights.sum(axis=1) == CELLS).all()
    # 10 blocks of 12: so many steps up and down around the circle, at most.
    steps = (np.diff(weights, axis=1, append=weights[:, :1]) != 0).sum(axis=1)
    assert steps.max() <= 20


def test_the_same_seed_draws_the_same_blocks() -> None:
    assert (block_weights(50, seed=1) == block_weights(50, seed=1)).all()
    assert (block_weights(50, seed=1) != block_weights(50, seed=2)).any()


def test_means_and_percentiles_are_those_of_the_cells_laid_one_after_another() -> None:
    chance = np.random.default_rng(0)
    samples = Samples.in_order(chance.lognormal(0, 1, 1_000))
    weights = block_weights(samples.cells, seed=0)
    means = replicated_means(samples, weights)
    (p90,) = replicated_percentiles(samples, weights, [90.0])

    for replicate in range(0, REPLICATES, 40):
        again = np.repeat(samples.values, weights[replicate].astype(int)[samples.cell])
        assert means[replicate] == pytest.approx(again.mean())
        expected = np.percentile(again, 90, method="inverted_cdf")
        assert p90[replicate] == pytest.approx(expected, rel=1.1e-3)


def test_the_standard_error_of_a_mean_is_as_known_from_theory() -> None:
    chance = np.random.default_rng(1)
    errors = []
    for seed in range(40):
        samples = Samples.in_order(chance.exponential(1.0, 2_000))
        means = replicated_means(samples, block_weights(samples.cells, seed=seed))
        errors.append(means.var() * variance_factor(samples.cells))

    assert np.sqrt(np.mean(errors)) == pytest.approx(1 / np.sqrt(2_000), rel=0.1)


@pytest.mark.long
def test_the_standard_error_of_a_percentile_is_as_known_from_theory() -> None:
    # sqrt(p (1 - p) / n) / density at the percentile, which is 1 - p for the exponential.
    chance = np.random.default_rng(2)
    errors = []
    for seed in range(40):
        samples = Samples.in_order(chance.exponential(1.0, 5_000))
        weights = block_weights(samples.cells, seed=seed)
        (p90,) = replicated_percentiles(samples, weights, [90.0])
        errors.append(p90.var() * variance_factor(samples.cells))

    expected = np.sqrt(0.9 * 0.1 / 5_000) / stats.expon.pdf(stats.expon.ppf(0.9))
    assert np.sqrt(np.mean(errors)) == pytest.approx(expected, rel=0.15)


def test_samples_of_nothing_but_zero_have_percentiles() -> None:
    samples = Samples.in_order(np.zeros(50))

    assert (replicated_percentiles(samples, block_weights(50, seed=0), [50.0]) == 0).all()
