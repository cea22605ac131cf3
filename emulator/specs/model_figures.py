"""A model's dimensions and derived sizes as figures, each with its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from emulator.specs.figure import Figure, NamedFigures
from emulator.specs.weight_format import WeightFormat

if TYPE_CHECKING:
    from emulator.specs.model import ModelSpec

_ARITHMETIC: Final = "arithmetic from the above"
_UNITS: Final = {
    "max_context_tokens": "tokens",
    "window_tokens": "tokens",
    "weight_bytes_per_param": "bytes",
    "kv_bytes_per_element": "bytes",
}
_KV_SOURCE: Final = "assumed: the cache has the type of the unquantised weights, as by default"
# What a model has not is not printed: it would be a column of zeros for most.
_OPTIONAL: Final = ("full_attention_every",)


def model_figures(model: ModelSpec) -> NamedFigures:
    """Every dimension by its field's name, then storage, latent and derived sizes."""
    return (*_dimensions(model), *_latent(model), *_storage(model), *_derived(model))


def _dimensions(model: ModelSpec) -> Iterator[tuple[str, Figure]]:
    for field in fields(model):
        value = getattr(model, field.name)
        if not isinstance(value, int) or (value == field.default and field.name in _OPTIONAL):
            continue
        if value == 0 and field.default == 0 and field.name != "tied_embeddings":
            continue
        unit = "flag" if isinstance(value, bool) else _UNITS.get(field.name, "count")
        source = _KV_SOURCE if field.name == "kv_bytes_per_element" else model.source
        yield field.name, Figure(float(value), unit, source)


def _latent(model: ModelSpec) -> Iterator[tuple[str, Figure]]:
    if model.latent is None:
        return
    for field in fields(model.latent):
        value = getattr(model.latent, field.name)
        yield f"latent_{field.name}", Figure(value, "count", model.source)


def _storage(model: ModelSpec) -> Iterator[tuple[str, Figure]]:
    """Bytes per parameter of quantised matrices; the format and its rate are in the source."""
    expert_rate = "multiplied at the MXFP8 rate, with MXFP8 activations"
    if model.expert_format is WeightFormat.FP8_BLOCK128:
        expert_rate += " (assumed: its scales are turned into MXFP8's when it is loaded)"
    quantised = (
        (
            "projection",
            model.projection_format,
            "multiplied at the FP8 rate where the chip has one, else in BF16",
        ),
        ("expert", model.expert_format, expert_rate),
    )
    for name, storage, rate in quantised:
        if storage.is_low_precision and (name != "expert" or model.experts):
            yield (
                f"{name}_bytes_per_param",
                Figure(
                    _bytes_per_param(storage),
                    "bytes",
                    f"{model.source}: {storage.described}; {rate}; timed, not computed",
                ),
            )


def _bytes_per_param(storage: WeightFormat) -> float:
    """Bytes per parameter of a matrix of whole blocks."""
    block = 128
    return storage.matrix_bytes(block, block) / block**2


def _derived(model: ModelSpec) -> Iterator[tuple[str, Figure]]:
    sizes = [
        ("parameters", "count"),
        ("active_parameters", "count"),
        ("weight_bytes", "bytes"),
        ("kv_bytes_per_token", "bytes"),
    ]
    if model.experts:
        sizes += [("expert_parameters", "count"), ("expert_bytes", "bytes")]
    if model.window_layers:
        sizes += [
            ("window_layers", "count"),
            ("kv_bytes_per_token_full_layers", "bytes"),
            ("kv_window_bytes_per_request", "bytes"),
        ]
    for name, unit in sizes:
        value = float(getattr(model, name))
        yield name, Figure(value, unit, _ARITHMETIC)
