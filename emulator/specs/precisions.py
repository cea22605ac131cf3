"""Weight formats of a model on a chip, by the names that users give.

`stored` is the checkpoint's own. An AWS chip serves a format only if it multiplies it: Trainium2's
workers refuse MXFP4 checkpoints, so weights are converted to FP8 or BF16 before loading. GPUs
unpack other formats in their kernels.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Final

from emulator.errors import ConfigError
from emulator.specs.chip import ChipSpec
from emulator.specs.model import ModelSpec
from emulator.specs.weight_format import WeightFormat

STORED: Final = "stored"
AUTO: Final = "auto"
KV_BYTES: Final = {"bf16": 2, "fp8": 1}
_KV_NAMES: Final = {size: name for name, size in KV_BYTES.items()} | {4: "fp32"}


def precisions_of(chip: ChipSpec, model: ModelSpec) -> tuple[str, ...]:
    """The precisions that are compared where none is named, widest first.

    Four bits are for routed experts only, as in the checkpoints that have them.
    """
    multiplies_fp4 = chip.tensor_fp4_flops_per_s is not None
    names = ["bf16"]
    if chip.tensor_fp8_flops_per_s is not None:
        names.append("fp8")
    if model.experts and (multiplies_fp4 or chip.maker != "AWS"):
        names.append("mxfp4")
    if model.experts and multiplies_fp4 and chip.maker == "NVIDIA":
        names.append("nvfp4")
    return tuple(names)


def mx_precisions_of(chip: ChipSpec) -> tuple[str, ...]:
    """Precisions in MX blocks, which `chip` serves where they are named, also of a dense model."""
    return () if chip.tensor_fp4_flops_per_s is None else ("mxfp8", "mxfp4", "w4a8")


@lru_cache(maxsize=16)
def model_at(precision: str, model: ModelSpec, chip: ChipSpec) -> ModelSpec:
    """`model` with weights, not cache, in `precision`; raises ConfigError if the chip lacks it."""
    supported = tuple(dict.fromkeys(precisions_of(chip, model) + mx_precisions_of(chip)))
    if precision in supported:
        return model.at_precision(precision)
    formats = (model.projection_format, model.expert_format)
    if precision == STORED and (WeightFormat.MXFP4 not in formats or "mxfp4" in supported):
        return model
    raise ConfigError(
        "precision", precision, f"one of {', '.join(supported)} for {model.name} on {chip.name}"
    )


def with_kv_dtype(name: str, model: ModelSpec, chip: ChipSpec) -> ModelSpec:
    """`model` with its KV in that format, vLLM's --kv-cache-dtype; "auto" leaves the catalog's.

    Raises ConfigError for another, and for FP8 on a chip that does not multiply it.
    """
    if name == AUTO:
        return model
    if name not in KV_BYTES or (name == "fp8" and chip.tensor_fp8_flops_per_s is None):
        able = [AUTO, *(each for each in KV_BYTES if each != name)]
        raise ConfigError("kv-cache-dtype", name, f"{' or '.join(able)} on {chip.name}")
    return replace(model, kv_bytes_per_element=KV_BYTES[name])


def kv_dtype(model: ModelSpec) -> str:
    """The format of its KV."""
    return _KV_NAMES[model.kv_bytes_per_element]


def as_stored_or_narrowest(chip: ChipSpec, model: ModelSpec) -> str:
    """As stored, or the chip's narrowest where it does not take that."""
    try:
        model_at(STORED, model, chip)
    except ConfigError:
        return precisions_of(chip, model)[-1]
    return STORED
