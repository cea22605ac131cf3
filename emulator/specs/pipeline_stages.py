"""Division of a model's layers over the stages of a pipeline.

Layers are spread evenly over all virtual stages; the first and the last, which have the ends,
get a layer less where they do not divide, perhaps none (as Llama 3's, arXiv 2407.21783, 3.3.2).
Virtual stage i is part of stage i modulo their number.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Self

import numpy as np

from emulator.arrays import Int64s
from emulator.errors import ConfigError
from emulator.specs.model import ModelSpec

ENDS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineStages:
    """Layers of each stage by kind, and its ends, all int64[stages]."""

    full_layers: Int64s  # attend to everything
    window_layers: Int64s
    dense_layers: Int64s
    moe_layers: Int64s
    first: Int64s  # 1 with the embedding
    last: Int64s  # 1 with the LM head

    @property
    def layers(self) -> Int64s:
        """All layers of each stage."""
        total: Int64s = self.dense_layers + self.moe_layers
        return total

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, model: ModelSpec, *, pp: int, virtual_stages: int = 1) -> Self:
        """`model` on `pp` stages; raises ConfigError where a virtual stage would have no layer."""
        parts = pp * virtual_stages
        if parts > model.layers + ENDS:
            raise ConfigError(
                "pp",
                pp,
                f"with {virtual_stages} virtual stages, at most {model.layers + ENDS} in all",
            )
        each, left = divmod(model.layers, parts)
        layers = np.full(parts, each)
        favoured = [*range(1, parts - 1), 0, parts - 1]
        layers[favoured[:left]] += 1
        part_of_layer = np.repeat(np.arange(parts), layers)
        layer = np.arange(model.layers)
        windowed = (layer + 1) % model.full_attention_every != 0

        def by_stage(which: np.ndarray) -> Int64s:
            return np.bincount(part_of_layer[which] % pp, minlength=pp).astype(np.int64)

        stage = np.arange(pp)
        return cls(
            full_layers=by_stage(~windowed),
            window_layers=by_stage(windowed),
            dense_layers=by_stage(layer < model.dense_layers),
            moe_layers=by_stage(layer >= model.dense_layers),
            first=(stage == 0).astype(np.int64),
            last=(stage == pp - 1).astype(np.int64),
        )


def tensor_share(model: ModelSpec, tp: int) -> ModelSpec:
    """The model that one chip of a tensor-parallel rank computes: fewer heads and columns.

    Norms, routers, shared and routed experts are whole: those work on a chip's own tokens. Keys and
    values are repeated where they are fewer than chips. Raises ConfigError for heads or columns
    that do not divide.
    """
    fits = model.heads % tp == 0 and model.dense_intermediate % tp == 0
    if not fits or (model.kv_heads % tp and tp % model.kv_heads):
        raise ConfigError("tp", tp, f"a divisor of the heads and columns of {model.name}")
    return replace(
        model,
        heads=model.heads // tp,
        kv_heads=max(1, model.kv_heads // tp),
        dense_intermediate=model.dense_intermediate // tp,
        vocab=-(-model.vocab // tp),
    )
