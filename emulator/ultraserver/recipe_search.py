"""Searches training recipes under HBM: the fastest on given chips, and the fewest chips that do.

Every recipe that fits is timed; none is guessed away. Recipes are tried in families that are alike
in precision, tp, pp and virtual stages, whose other settings are arrays.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from emulator.arrays import Bools, Int64s
from emulator.errors import ConfigError
from emulator.memory.training_memory import (
    MASTER_BYTES,
    MOMENTS_BYTES,
    TrainingMemory,
    check_training_fits,
    fits_bytes,
    trained_model,
    training_bytes,
    training_cores,
    training_memory,
)
from emulator.specs.calibration import Calibration
from emulator.specs.model import ModelSpec
from emulator.specs.overlap import Overlap
from emulator.specs.partition import divisors
from emulator.specs.pipeline_stages import tensor_share
from emulator.specs.recipe_columns import RECOMPUTES, RecipeColumns
from emulator.specs.system import SystemSpec
from emulator.specs.training_recipe import (
    BATCH_TOKENS,
    PRECISIONS,
    SEQUENCE_TOKENS,
    PipelineSchedule,
    Recompute,
    Sharding,
    TrainingRecipe,
)
from emulator.ultraserver.recipe_costs import RecipeCostModel, RecipeCosts

TP_MAX: Final = 16
_STATE_BYTES: Final = MASTER_BYTES + MOMENTS_BYTES  # of a parameter, held once at least
VIRTUAL_STAGES: Final = (1, 2, 4)
SEQUENCES: Final = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSpace:
    """Recipes to try; an empty setting is everything that fits the chips and the model.

    `batch_tokens`: a step's at most, which sets micro-batches.
    """

    sequence_tokens: int = SEQUENCE_TOKENS
    batch_tokens: int = BATCH_TOKENS
    precision: tuple[str, ...] = ()
    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    virtual_stages: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    sharding: tuple[Sharding, ...] = tuple(Sharding)
    recompute: tuple[Recompute, ...] = RECOMPUTES
    sequences: tuple[int, ...] = ()
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    overlap: Overlap = Overlap.NONE
    lnc: int | None = None

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "virtual_stages", "ep", "sequences"):
            for value in getattr(self, name):
                if value < 1:
                    raise ConfigError(name, value, "at least 1")
        if self.batch_tokens < self.sequence_tokens:
            raise ConfigError("batch_tokens", self.batch_tokens, "a sequence at least")

    @property
    def micro_sequences(self) -> tuple[int, ...]:
        """Sequences of a micro-batch that are tried."""
        return self.sequences or SEQUENCES

    def families(self, model: ModelSpec, chips: int) -> Iterator[RecipeColumns]:
        """All recipes of `model` on `chips` chips."""
        precisions = self.precision or PRECISIONS
        stages = [pp for pp in self.pp or divisors(chips) if pp <= model.layers]
        for precision, pp in product(precisions, stages):
            if chips % pp:
                continue
            for tp, parts in product(self._tp(model, chips // pp), self._virtual(model, pp)):
                base = TrainingRecipe(
                    sequence_tokens=self.sequence_tokens,
                    precision=precision,
                    tp=tp,
                    pp=pp,
                    virtual_stages=parts,
                    schedule=self.schedule,
                    overlap=self.overlap,
                    lnc=self.lnc,
                )
                found = self._columns(model, base, chips)
                if len(found):
                    yield found

    def _tp(self, model: ModelSpec, stage_chips: int) -> list[int]:
        return [
            tp
            for tp in self.tp or divisors(stage_chips)
            if stage_chips % tp == 0 and (self.tp or tp <= TP_MAX) and _divides(model, tp)
        ]

    def _virtual(self, model: ModelSpec, pp: int) -> list[int]:
        alone = pp == 1 or self.schedule is not PipelineSchedule.ONE_F_ONE_B
        tried = self.virtual_stages or VIRTUAL_STAGES
        return [1] if alone else [parts for parts in tried if parts * pp <= model.layers]

    def _columns(self, model: ModelSpec, base: TrainingRecipe, chips: int) -> RecipeColumns:
        stage_chips = chips // base.pp
        most = max(1, model.experts)
        sizes = [ep for ep in self.ep or divisors(stage_chips) if stage_chips % ep == 0]
        ep, sharding, recompute, sequences = (
            np.array(each, dtype=np.int64).ravel()
            for each in np.meshgrid(
                [ep for ep in sizes if ep <= most],
                [int(each) for each in self.sharding],
                [RECOMPUTES.index(each) for each in self.recompute],
                self.micro_sequences,
            )
        )
        replicas = stage_chips // base.tp
        micro_batches = self.batch_tokens // (sequences * base.sequence_tokens * replicas)
        columns = RecipeColumns(
            base=base,
            chips=chips,
            sequences=sequences,
            micro_batches=micro_batches,
            ep=ep,
            sharding=sharding,
            recompute=recompute,
        )
        # Interleaved stages take turns by pp micro-batches (Megatron).
        whole = base.virtual_stages == 1 or micro_batches % base.pp == 0
        return columns.where((micro_batches >= 1) & whole)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundRecipes:
    """The fastest recipes, the best first, of `tried` of which `fitting` fit HBM."""

    tried: int
    fitting: int
    costs: tuple[RecipeCosts, ...]  # of one recipe each
    memory: TrainingMemory  # of the best


def best_recipes(
    system: SystemSpec,
    model: ModelSpec,
    chips: int,
    space: RecipeSpace,
    *,
    calibration: Calibration | None = None,
    count: int = 1,
) -> FoundRecipes:
    """The `count` fastest on the first `chips` of `system`.

    Raises ConfigError for a space without recipes, HbmExhausted, with the least bytes that a chip
    would hold, where none fits.
    """
    model_costs = RecipeCostModel(
        system, model, chips, calibration=calibration, sequences=space.micro_sequences
    )
    tried = fitting = 0
    found: list[tuple[float, RecipeCosts]] = []
    thriftiest: tuple[int, RecipeColumns] | None = None
    for columns in space.families(model, chips):
        tried += len(columns)
        fits, least = _fitting(system, model, columns)
        if thriftiest is None or least[0] < thriftiest[0]:
            thriftiest = (least[0], columns.where(np.arange(len(columns)) == least[1]))
        if not fits.any():
            continue
        fitting += int(fits.sum())
        costs = model_costs.costs(columns.where(fits))
        rates = costs.tokens_per_s
        for place in np.argsort(-rates, kind="stable")[:count].tolist():
            found.append((float(rates[place]), costs.of(place)))
    if thriftiest is None:
        raise ConfigError("chips", chips, f"chips that some recipe divides for {model.name}")
    if not found:
        check_training_fits(system, model, chips, thriftiest[1].recipe(0))
    found.sort(key=lambda each: -each[0])
    best = tuple(costs for _, costs in found[:count])
    memory = training_memory(system, model, chips, best[0].columns.recipe(0))
    return FoundRecipes(tried=tried, fitting=fitting, costs=best, memory=memory)


def fewest_training_chips(
    domain: SystemSpec, model: ModelSpec, space: RecipeSpace, *, units: int = 1
) -> int | None:
    """The fewest chips on which some recipe fits HBM, of at most `units` scale-up domains; or None.

    Equally many of each domain, as `job_chips`.
    """
    thrifty = replace(
        space,
        sharding=(max(space.sharding),),
        recompute=(max(space.recompute, key=RECOMPUTES.index),),
        sequences=(min(space.micro_sequences),),
    )
    width, state_bytes = domain.chips.count, _STATE_BYTES * model.parameters
    least = max(1, state_bytes // domain.chip.hbm_bytes)
    for chips in range(least, width * units + 1):
        if chips % -(-chips // width):
            continue
        for columns in thrifty.families(model, chips):
            if _fitting(domain, model, columns)[0].any():
                return chips
    return None


def _fitting(
    system: SystemSpec, model: ModelSpec, columns: RecipeColumns
) -> tuple[Bools, tuple[int, int]]:
    """Which recipes fit, [recipes], and the bytes and place of the one that needs the least."""
    held = training_bytes(system, trained_model(model, columns.base), columns)
    on_stages = fits_bytes(training_cores(system, columns.base), held)
    fits: Bools = np.all(on_stages, axis=1)
    chip_bytes: Int64s = np.sum(list(held.values()), axis=0).max(axis=1)
    place = int(chip_bytes.argmin())
    return fits, (int(chip_bytes[place]), place)


def _divides(model: ModelSpec, tp: int) -> bool:
    try:
        tensor_share(model, tp)
    except ConfigError:
        return False
    return True
