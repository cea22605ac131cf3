from dataclasses import replace

import numpy as np
import pytest

from emulator.specs.mixtral_8x7b import MIXTRAL_8X7B
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.expert_sampler import ExpertSampler

MODEL = replace(MIXTRAL_8X7B, layers=2, experts=6, experts_per_token=3)
ZIPF = ExpertDistribution.zipf(MODEL, exponent=1.0, seed=1)
TOKENS = np.arange(40_000, dtype=np.int64)


def test_a_token_picks_distinct_experts_in_ascending_order() -> None:
    chosen = ExpertSampler(ZIPF, seed=5).draw(0, TOKENS)

    assert chosen.shape == (len(TOKENS), 3)
    assert (np.diff(chosen, axis=1) > 0).all()
    assert (chosen.min(), chosen.max()) == (0, 5)


def test_a_draw_depends_on_seed_layer_and_token_alone() -> None:
    sampler = ExpertSampler(ZIPF, seed=5)
    whole = sampler.draw(1, TOKENS[:100])

    assert (sampler.draw(1, TOKENS[60:70]) == whole[60:70]).all()
    assert (ExpertSampler(ZIPF, seed=5).draw(1, TOKENS[:100][::-1]) == whole[::-1]).all()
    assert (sampler.draw(0, TOKENS[:100]) != whole).any()
    assert (ExpertSampler(ZIPF, seed=6).draw(1, TOKENS[:100]) != whole).any()


@pytest.mark.parametrize("layer", [0, 1])
def test_experts_and_pairs_of_experts_are_picked_as_often_as_the_distribution_says(
    layer: int,
) -> None:
    chosen = ExpertSampler(ZIPF, seed=9).draw(layer, TOKENS)
    picked = np.zeros((len(TOKENS), 6))
    np.put_along_axis(picked, chosen, 1.0, axis=1)

    # five standard deviations of a share of 40,000 tokens
    tolerance = 5 * 0.5 / len(TOKENS) ** 0.5
    assert picked.mean(axis=0) == pytest.approx(ZIPF.probability[layer], abs=tolerance)
    # every set is as likely as the product of its odds
    odds = ZIPF.odds[layer]
    sets, counts = np.unique(chosen, axis=0, return_counts=True)
    weights = odds[sets].prod(axis=1)
    assert len(sets) == 20
    assert counts / len(TOKENS) == pytest.approx(weights / weights.sum(), abs=tolerance)


def test_experts_that_are_never_picked_stay_so_and_certain_ones_too() -> None:
    loads = np.array([[1.0, 0, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1]])
    recorded = ExpertDistribution.recorded(MODEL, loads, name="x")

    chosen = ExpertSampler(recorded, seed=0).draw(0, TOKENS[:1_000])

    assert (chosen == [0, 2, 4]).all()
