"""The laws that ship, with constants fitted to measured kernels.

`ultraserve validate --kernels --refit FILE` writes the data. A constant is a base, which holds for
machines and stacks without measurements, times a factor for each level that is known.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from emulator.errors import ConfigError
from emulator.timing.laws.collective_law import CollectiveLaw
from emulator.timing.laws.decode_attention_law import DecodeAttentionLaw
from emulator.timing.laws.expert_law import ExpertLaw
from emulator.timing.laws.prefill_attention_law import PrefillAttentionLaw
from emulator.timing.laws.product_law import ProductLaw

LAWS: Final[Mapping[str, type[Any]]] = {
    "GEMM": ProductLaw,
    "MLA decode": DecodeAttentionLaw,
    "GQA decode": DecodeAttentionLaw,
    "MLA prefill": PrefillAttentionLaw,
    "GQA prefill": PrefillAttentionLaw,
    "MoE": ExpertLaw,
    "collectives": CollectiveLaw,
}
"""The law of each family of kernels, by the family's name."""


@lru_cache
def shipped_constants() -> Mapping[str, Any]:
    """The file's content: `data` says what was fitted, `families` has the constants."""
    text = files("emulator.data").joinpath("kernel_laws.json").read_text(encoding="utf-8")
    held: Mapping[str, Any] = json.loads(text)
    return held


def shipped_law(family: str, **levels: str) -> Any:
    """The family's law for `levels`; an unknown value of one has factor 1.

    As kernel="trtllm.fp8" (stack and format), compiled="trtllm.fp8.hopper" (as compiled for a
    generation), format="fp8", source="moe_torch_flow_cutlass", fabric="pcie".

    Raises ConfigError for an unknown family, or a level that no constant of it depends on.
    """
    constants = shipped_constants()["families"].get(family)
    if constants is None:
        raise ConfigError("family", family, f"one of {', '.join(LAWS)}")
    known = {level for constant in constants.values() for level in constant["levels"]}
    for level in levels.keys() - known:
        raise ConfigError(f"{family}.level", level, f"one of {', '.join(sorted(known))}")
    return LAWS[family](**{name: _value(constant, levels) for name, constant in constants.items()})


def _value(constant: Mapping[str, Any], levels: Mapping[str, str]) -> float:
    value = float(constant["base"])
    for level, factors in constant["levels"].items():
        value *= factors.get(levels.get(level, ""), 1.0)
    return float(min(max(value, constant["least"]), constant["most"]))
