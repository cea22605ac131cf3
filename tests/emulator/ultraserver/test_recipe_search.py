from dataclasses import replace

import pytest

from emulator.errors import ConfigError, HbmExhausted
from emulator.memory.training_memory import training_cores, training_memory
from emulator.specs.models import MODELS, model_by_name
from emulator.specs.recipe_columns import RecipeColumns
from emulator.specs.systems import system_by_name
from emulator.specs.training_recipe import Recompute, Sharding
from emulator.ultraserver.recipe_costs import RecipeCostModel
from emulator.ultraserver.recipe_search import (
    RecipeSpace,
    best_recipes,
    fewest_training_chips,
)

OF_A_FAMILY = (
    *("deepseek-r1", "gpt-oss-120b", "llama-3.1-70b", "llama-3.1-405b"),
    *("qwen3-235b-a22b", "qwen3-30b-a3b", "kimi-k2", "gpt-oss-20b"),
)
"""Models of families that have another one."""
ULTRASERVER = system_by_name("trn3-nl72x2")
SMALL = RecipeSpace(
    batch_tokens=2**20,
    tp=(1, 2),
    pp=(1, 2),
    ep=(2, 8),
    virtual_stages=(1, 2),
    sequences=(1, 2),
    precision=("bf16",),
)


@pytest.mark.long
def test_the_best_is_the_fastest_of_all_that_fit_taken_one_by_one() -> None:
    model, chips = model_by_name("gpt-oss-120b"), 16
    found = best_recipes(ULTRASERVER, model, chips, SMALL, count=3)

    tried, rates = 0, []
    costs = RecipeCostModel(ULTRASERVER, model, chips)
    for columns in SMALL.families(model, chips):
        tried += len(columns)
        for place in range(len(columns)):
            recipe = columns.recipe(place)
            memory = training_memory(ULTRASERVER, model, chips, recipe)
            if memory.fits(training_cores(ULTRASERVER, recipe)):
                rates.append(float(costs.costs(RecipeColumns.of(recipe, chips)).tokens_per_s[0]))
    assert (found.tried, found.fitting) == (tried, len(rates))
    assert 0 < found.fitting < tried
    best = [float(each.tokens_per_s[0]) for each in found.costs]
    assert best == pytest.approx(sorted(rates, reverse=True)[:3])


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in OF_A_FAMILY else [])
        for name in sorted(MODELS)
    ],
)
def test_every_catalog_model_trains_on_an_ultraserver(name: str) -> None:
    space = replace(RecipeSpace(), virtual_stages=(1,), precision=("fp8",), sequences=(1,))
    model = MODELS[name]

    fewest = fewest_training_chips(ULTRASERVER, model, space)
    found = best_recipes(ULTRASERVER, model, 144, space)

    assert fewest is not None
    assert fewest <= 144
    assert found.memory.fits(training_cores(ULTRASERVER, found.costs[0].columns.base))
    assert found.costs[0].columns.step_tokens[0] <= space.batch_tokens
    assert best_recipes(ULTRASERVER, model, fewest, space).fitting >= 1
    if fewest > 1:
        with pytest.raises(HbmExhausted):
            best_recipes(ULTRASERVER, model, fewest - 1, space)


@pytest.mark.long
def test_a_model_too_large_for_one_machine_trains_on_several_of_equally_many_chips() -> None:
    space = replace(RecipeSpace(), virtual_stages=(1,), precision=("fp8",), sequences=(1,))
    model, domain = model_by_name("kimi-k2"), system_by_name("trn3-nl32x2")  # 64 chips

    assert fewest_training_chips(domain, model, space) is None
    chips = fewest_training_chips(domain, model, space, units=8)

    assert chips is not None
    assert 64 < chips <= 128
    assert chips % 2 == 0
    assert best_recipes(domain.cluster(2), model, chips, space).fitting >= 1


@pytest.mark.long
def test_what_fits_nowhere_is_refused_in_bytes() -> None:
    with pytest.raises(HbmExhausted, match=r"each of 8 chips would hold [\d,]+ bytes to train"):
        best_recipes(ULTRASERVER, model_by_name("kimi-k2"), 8, RecipeSpace())


def test_a_step_has_at_most_the_tokens_asked_for() -> None:
    space = replace(SMALL, batch_tokens=5 * 4_096)
    found = [
        recipe
        for columns in space.families(model_by_name("gpt-oss-20b"), 4)
        for recipe in map(columns.recipe, range(len(columns)))
    ]

    assert found
    for recipe in found:
        replicas = 4 // (recipe.tp * recipe.pp)
        assert recipe.step_tokens_per_chip * replicas <= 5 * 4_096
        assert recipe.virtual_stages == 1 or recipe.micro_batches % recipe.pp == 0
    with pytest.raises(ConfigError, match="batch_tokens=100: expected a sequence at least"):
        replace(SMALL, batch_tokens=100)
    with pytest.raises(ConfigError, match="chips=2"):
        best_recipes(ULTRASERVER, model_by_name("gpt-oss-20b"), 2, replace(SMALL, tp=(3,)))


def test_a_narrowed_space_is_all_that_is_tried() -> None:
    space = replace(
        SMALL, sharding=(Sharding.WEIGHTS,), recompute=(Recompute.FULL,), ep=(8,), tp=(1,), pp=(1,)
    )
    (columns,) = space.families(model_by_name("gpt-oss-20b"), 8)

    assert len(columns) == 2  # of one sequence or two in a micro-batch
    assert {columns.recipe(place).sharding for place in range(2)} == {Sharding.WEIGHTS}
    assert {columns.recipe(place).recompute for place in range(2)} == {Recompute.FULL}
