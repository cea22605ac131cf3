from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.training_recipe import TrainingRecipe

RECIPE = TrainingRecipe(sequence_tokens=10, sequences_per_chip=3, micro_batches=2)


def test_a_chip_trains_its_sequences_in_every_micro_batch_of_a_step() -> None:
    assert RECIPE.micro_batch_tokens_per_chip == 30
    assert RECIPE.step_tokens_per_chip == 60


def test_experts_are_spread_over_all_chips_unless_a_group_is_asked_for() -> None:
    assert RECIPE.expert_group(6) == 6
    assert replace(RECIPE, ep=3).expert_group(6) == 3
    with pytest.raises(ConfigError, match="ep=4: expected a divisor of the 6 chips"):
        replace(RECIPE, ep=4).expert_group(6)


@pytest.mark.parametrize(
    "field", ["sequence_tokens", "sequences_per_chip", "micro_batches", "ep", "lnc"]
)
def test_less_than_one_of_anything_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}=0"):
        TrainingRecipe(**{field: 0})


def test_a_precision_that_nobody_trains_in_is_refused() -> None:
    with pytest.raises(ConfigError, match="precision=mxfp4: expected bf16 or fp8"):
        TrainingRecipe(precision="mxfp4")
