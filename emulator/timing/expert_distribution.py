"""A stated distribution of tokens over experts, for routing that is not computed.

Real routers are not uniform. A named and seeded distribution states a result's assumption:
`uniform`, `zipf:S`, or a file of recorded expert loads.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from emulator.arrays import Float64s
from emulator.errors import ConfigError
from emulator.specs.model import ModelSpec
from emulator.timing.expert_sets import odds_for, pick_chances

_FORMS: Final = "uniform, zipf:EXPONENT, or a .json or .csv file of expert loads"
_FIELD: Final = "routing"
_EXPONENT_MAX: Final = 10.0  # rank 128 would have odds of 1e-21, below which digits are lost


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertDistribution:
    """Tokens pick sets of `experts_per_token` experts, independently of each other.

    A set is as likely as the product of its experts' `odds`; see `expert_sets`. `probability` is
    the chance that a token picks an expert; rows sum to `experts_per_token`. Both are
    float64[layers, experts], for layers with experts.
    """

    name: str
    experts_per_token: int
    probability: Float64s
    odds: Float64s

    @classmethod
    def uniform(cls, model: ModelSpec) -> Self:
        """Every set of experts is equally likely."""
        shape = (model.moe_layers, model.experts)
        chance = model.experts_per_token / max(1, model.experts)
        return cls(
            name="uniform",
            experts_per_token=model.experts_per_token,
            probability=np.full(shape, chance),
            odds=np.ones(shape),
        )

    @classmethod
    def zipf(cls, model: ModelSpec, *, exponent: float, seed: int) -> Self:
        """The expert of rank r has odds r^-exponent; each layer ranks its experts by `seed`."""
        by_rank = np.arange(1, model.experts + 1, dtype=np.float64) ** -exponent
        chances = pick_chances(by_rank, model.experts_per_token)
        ranks = np.array(
            [
                np.random.default_rng([seed, layer]).permutation(model.experts)
                for layer in range(model.moe_layers)
            ],
            dtype=np.int64,
        ).reshape(model.moe_layers, model.experts)
        return cls(
            name=f"zipf:{exponent:g} (seed {seed})",
            experts_per_token=model.experts_per_token,
            probability=chances[ranks],
            odds=by_rank[ranks],
        )

    @classmethod
    def recorded(cls, model: ModelSpec, loads: Float64s, *, name: str) -> Self:
        """Experts are picked in proportion to `loads`, float64[layers, experts].

        Raises ValueError for another shape, a negative or infinite load, a layer without load, or
        loads impossible for tokens that pick distinct experts.
        """
        shape = (model.moe_layers, model.experts)
        if loads.shape != shape:
            raise ValueError(f"{shape[0]} layers of {shape[1]} loads, not {loads.shape}")
        if not np.isfinite(loads).all() or (loads < 0).any():
            raise ValueError("loads that are numbers of at least 0")
        totals = loads.sum(axis=1, keepdims=True)
        if (totals <= 0).any():
            raise ValueError("a load in every layer")
        chances = loads / totals * model.experts_per_token
        return cls(
            name=name,
            experts_per_token=model.experts_per_token,
            probability=chances,
            odds=odds_for(chances, model.experts_per_token),
        )

    @classmethod
    def parse(cls, text: str, model: ModelSpec, *, seed: int) -> Self:
        """Parse a user's name of a distribution; see the module. Raises ConfigError, one line."""
        if text == "uniform" or not model.experts:
            return cls.uniform(model)
        if text.startswith("zipf:"):
            return cls.zipf(model, exponent=_exponent(text), seed=seed)
        path = Path(text)
        if path.suffix not in (".json", ".csv"):
            raise ConfigError(_FIELD, text, _FORMS)
        try:
            loads = _read_json(path, model) if path.suffix == ".json" else _read_csv(path)
            return cls.recorded(model, loads, name=f"recorded:{path.name}")
        except OSError as error:
            raise ConfigError(
                _FIELD, text, f"a file that can be read ({error.strerror})"
            ) from error
        except ValueError as error:
            raise ConfigError(_FIELD, text, str(error)) from error


def _exponent(text: str) -> float:
    try:
        exponent = float(text.removeprefix("zipf:"))
    except ValueError:
        exponent = float("nan")
    if not 0.0 <= exponent <= _EXPONENT_MAX:
        raise ConfigError(_FIELD, text, f"zipf:S with S from 0 to {_EXPONENT_MAX:g}")
    return exponent


def _read_json(path: Path, model: ModelSpec) -> Float64s:
    """{"model": name, "loads": [[load of each expert] for each layer]} -> [layers, experts]."""
    try:
        held: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"JSON ({error})") from error
    if not isinstance(held, dict) or not isinstance(held.get("loads"), list):
        raise ValueError('an object with "model" and "loads"')
    if held.get("model") != model.name:
        raise ValueError(f"loads of {model.name}, not of {held.get('model')}")
    return _table(held["loads"])


def _read_csv(path: Path) -> Float64s:
    """One line per layer, one load per expert -> [layers, experts]."""
    with path.open(newline="", encoding="utf-8") as lines:
        return _table([row for row in csv.reader(lines) if row])


def _table(rows: Sequence[object]) -> Float64s:
    try:
        return np.array(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError("layers with equally many numbers") from error
