"""Rotary settings of a config.json, read as transformers 5 reads them.

Settings are under `rope_parameters` (newer), `rope_scaling` (older, which wins if not empty), or
both, with `rope_theta` and missing values inside or beside. (Source: transformers'
modeling_rope_utils, `convert_rope_params_to_dict` and `standardize_rope_params`, for a model
without settings by layer type, as Qwen3-MoE.) Unsupported settings are refused by name.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from emulator.errors import CheckpointError

DEFAULT_THETA: Final = 10_000.0
_BETA_FAST: Final = 32.0
_BETA_SLOW: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Interpolated positions: every frequency is divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): a ramp between interpolated and unchanged frequencies.

    `attention_factor` scales cosines and sines; `truncate` rounds the ramp's ends.
    """

    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    original_context_tokens: float
    truncate: bool


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSettings:
    """The base of the frequencies and their scaling; None is plain RoPE."""

    theta: float
    scaling: RopeScaling | None = None

    def __str__(self) -> str:
        return f"theta={self.theta:g}, scaling={self.scaling}"


def read_rope_settings(
    config: Mapping[str, Any], path: str, *, default_theta: float = DEFAULT_THETA
) -> RopeSettings:
    """Read the rotary settings of a parsed config.json; `path` names it in errors.

    `default_theta` counts where there is no `rope_theta`, inside or beside. Raises CheckpointError
    for unsupported settings, or no numbers.
    """
    settings = _Settings(_standardised(config, path, default_theta), path)
    rope_type = settings.values["rope_type"]
    theta = settings.number("rope_theta")
    if rope_type == "default":
        return RopeSettings(theta=theta, scaling=None)
    context_tokens = config.get("max_position_embeddings")
    if rope_type == "linear":
        scaling: RopeScaling = LinearScaling(factor=settings.number("factor", minimum=1.0))
    elif rope_type == "llama3":
        scaling = _llama3(settings, context_tokens)
    elif rope_type == "yarn":
        if theta <= 1.0:
            raise settings.refusal("rope_theta", "must be above 1 for yarn")
        scaling = _yarn(settings, context_tokens)
    else:
        raise settings.refusal("rope_type", "must be default, linear, llama3 or yarn")
    return RopeSettings(theta=theta, scaling=scaling)


def _standardised(config: Mapping[str, Any], path: str, default_theta: float) -> dict[str, Any]:
    """One flat table of the settings, including `rope_type` and `rope_theta`."""
    for name in ("rope_scaling", "rope_parameters"):
        if config.get(name) and not isinstance(config[name], Mapping):
            raise CheckpointError(f"{path}: {name}={config[name]}: must be an object")
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = dict(config.get(key) or {})
    nested = [name for name, value in rope.items() if isinstance(value, Mapping)]
    nested += [name for name in rope if name in (config.get("layer_types") or ())]
    if nested:
        raise CheckpointError(
            f"{path}: {key}.{nested[0]}: settings by layer type are not computed here; all layers"
            " must have the same"
        )
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial is not None and partial != 1:
        raise CheckpointError(
            f"{path}: partial_rotary_factor={partial}: must be 1 to be computed here"
        )
    rope.setdefault("rope_type", rope.get("type", "default"))
    if rope.get("type", rope["rope_type"]) != rope["rope_type"]:
        raise CheckpointError(
            f"{path}: rope_type={rope['rope_type']}: must be the same as {key}.type={rope['type']}"
        )
    rope.setdefault("rope_theta", config.get("rope_theta", default_theta))
    # One beside the settings counts more than one among them; the pretrained context is the whole
    # context where neither is there.
    if "original_max_position_embeddings" in config:
        rope["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return rope


def _llama3(settings: "_Settings", context_tokens: object) -> Llama3Scaling:
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    if high <= low:
        raise settings.refusal("high_freq_factor", f"must be above low_freq_factor={low:g}")
    return Llama3Scaling(
        factor=settings.number("factor", minimum=1.0),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context_tokens=settings.original_context(context_tokens),
    )


def _yarn(settings: "_Settings", context_tokens: object) -> YarnScaling:
    original = settings.original_context(context_tokens)
    values = dict(settings.values)
    if "factor" in values and values["factor"] is None and type(context_tokens) is int:
        values["factor"] = context_tokens / original  # as transformers for DeepSeek-V3's configs
    settings = _Settings(values, settings.path)
    factor = settings.number("factor", minimum=1.0)
    truncate = values.get("truncate", True)
    if type(truncate) is not bool:
        raise settings.refusal("truncate", "must be true or false")
    return YarnScaling(
        factor=factor,
        attention_factor=_attention_factor(settings, factor),
        beta_fast=settings.optional("beta_fast") or _BETA_FAST,
        beta_slow=settings.optional("beta_slow") or _BETA_SLOW,
        original_context_tokens=original,
        truncate=truncate,
    )


def _attention_factor(settings: "_Settings", factor: float) -> float:
    """0.1 ln(factor) + 1 as in the paper, or a ratio of two such with both mscales."""
    if settings.values.get("attention_factor") is not None:
        return settings.number("attention_factor")
    mscale, all_dims = settings.optional("mscale"), settings.optional("mscale_all_dim")

    def grown(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    return grown(mscale) / grown(all_dims) if mscale and all_dims else grown(1.0)


@dataclass(frozen=True, slots=True)
class _Settings:
    """The standardised table; raises CheckpointError with the key and `path`."""

    values: Mapping[str, Any]
    path: str

    def refusal(self, key: str, expected: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: {key}={self.values.get(key)}: {expected} to be computed here"
        )

    def number(self, key: str, *, minimum: float = 0.0) -> float:
        """The number under `key`, above 0 and at least `minimum`."""
        if key not in self.values:
            rope_type = self.values["rope_type"]
            raise CheckpointError(
                f"{self.path}: key {key} is missing, which rope_type={rope_type} needs"
            )
        value = self.values[key]
        ok = type(value) in (int, float) and math.isfinite(value) and value > 0
        if not ok or value < minimum:
            wanted = f"of at least {minimum:g}" if minimum else "above 0"
            raise CheckpointError(f"{self.path}: {key}={value}: must be a number {wanted}")
        return float(value)

    def optional(self, key: str) -> float | None:
        """The number under `key`; None where it is missing, null or 0."""
        value = self.values.get(key)
        return None if value is None or value == 0 else self.number(key)

    def original_context(self, context_tokens: object) -> float:
        """The context length in training; by default the whole context."""
        key = "original_max_position_embeddings"
        return _Settings({key: context_tokens, **self.values}, self.path).number(key)
