"""Training recipes side by side, for costs of thousands of them at once."""

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from emulator.arrays import Bools, Int64s
from emulator.errors import ConfigError
from emulator.specs.training_recipe import Recompute, Sharding, TrainingRecipe

RECOMPUTES: Final = tuple(Recompute)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecipeColumns:
    """Recipes on `chips` chips that differ from `base` by int64[recipes] each.

    `recompute`: places in RECOMPUTES. Raises ConfigError for chips, or groups, that do not divide.
    """

    base: TrainingRecipe
    chips: int
    sequences: Int64s
    micro_batches: Int64s
    ep: Int64s
    sharding: Int64s
    recompute: Int64s

    def __post_init__(self) -> None:
        if self.chips % (self.base.pp * self.base.tp):
            expected = f"tp x pp = {self.base.tp} x {self.base.pp} divides {self.chips} chips"
            raise ConfigError("pp", self.base.pp, expected)
        uneven = self.stage_chips % self.ep != 0
        if uneven.any():
            expected = f"a divisor of the {self.stage_chips} chips"
            raise ConfigError("ep", int(self.ep[uneven][0]), expected)

    @classmethod
    def of(cls, recipe: TrainingRecipe, chips: int) -> Self:
        """One recipe alone."""
        ep = recipe.ep or max(1, chips // recipe.pp)
        each = (recipe.sequences_per_chip, recipe.micro_batches, ep, recipe.sharding)
        sequences, micro_batches, group, sharding = (np.array([int(value)]) for value in each)
        return cls(
            base=recipe,
            chips=chips,
            sequences=sequences,
            micro_batches=micro_batches,
            ep=group,
            sharding=sharding,
            recompute=np.array([RECOMPUTES.index(recipe.recompute)]),
        )

    def __len__(self) -> int:
        return len(self.ep)

    @property
    def stage_chips(self) -> int:
        """Chips of a pipeline's stage."""
        return self.chips // self.base.pp

    @property
    def replicas(self) -> int:
        """Data-parallel replicas."""
        return self.stage_chips // self.base.tp

    @property
    def rank_tokens(self) -> Int64s:
        """Tokens of a rank in a micro-batch: [recipes]."""
        tokens: Int64s = self.sequences * self.base.sequence_tokens
        return tokens

    @property
    def step_tokens(self) -> Int64s:
        """Tokens of a step of all chips: [recipes]."""
        tokens: Int64s = self.rank_tokens * self.micro_batches * self.replicas
        return tokens

    def recipe(self, place: int) -> TrainingRecipe:
        """The recipe of one column."""
        return replace(
            self.base,
            sequences_per_chip=int(self.sequences[place]),
            micro_batches=int(self.micro_batches[place]),
            ep=int(self.ep[place]),
            sharding=Sharding(int(self.sharding[place])),
            recompute=RECOMPUTES[int(self.recompute[place])],
        )

    def where(self, kept: Bools) -> Self:
        """Some of the recipes."""
        return replace(
            self,
            sequences=self.sequences[kept],
            micro_batches=self.micro_batches[kept],
            ep=self.ep[kept],
            sharding=self.sharding[kept],
            recompute=self.recompute[kept],
        )
