"""What a plan minimises, and limits and formats of which it takes several or a given one."""

from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

from emulator.errors import ConfigError
from serving.commands.analysis_options import SimulationOptions, check_least, whole_numbers
from serving.traffic.engine_limits import SEARCHED_LIMITS, BatchLimits
from startup.typed_options import option

SEARCHED: Final = (*SEARCHED_LIMITS, "prefill_policy")
"""Limits of a scheduler of which a plan takes several."""


@dataclass(frozen=True, kw_only=True)
class SearchedOptions:
    """Of a plan's search."""

    GROUP = SimulationOptions.GROUP

    minimise: Literal["chips", "machines", "mw", "usd", "gco2"] = option(
        "chips",
        "what the answer has the least of: chips in service, machines bought, megawatts drawn at "
        "the peak, dollars or gCO2 of an hour over the day, those three of all that is bought",
    )
    max_num_seqs: str | None = option(
        None,
        "requests at once on a rank, or several to try (default: 1,024); without it 256 too, where "
        "a setting is near the target",
        metavar="N,...",
    )
    max_num_batched_tokens: str | None = option(
        None,
        "new tokens of a rank in a step, or several to try (default: 8,192); without it 2,048 too, "
        "likewise",
        metavar="N,...",
    )
    kv_cache_dtype: Literal["auto", "bf16", "fp8"] = option(
        "auto",
        "format of KV, as vLLM names it: auto is the model's in the catalog, and says what fp8 "
        "would save: it halves the bytes, and what it does to replies is not in the model",
    )

    def batch_limits(self) -> tuple[BatchLimits, ...]:
        """All that vLLM would take of those to try, which has a step of fewer tokens than requests
        refused.
        """
        tried = []
        for name, searched in SEARCHED_LIMITS.items():
            flag, text = name.replace("_", "-"), getattr(self, name)
            values = whole_numbers(flag, text) or searched
            check_least(flag, min(values), 1)
            tried.append(values)
        found = tuple(
            BatchLimits(max_num_seqs=seqs, max_num_batched_tokens=tokens)
            for seqs, tokens in dict.fromkeys(product(*tried))
            if tokens >= seqs
        )
        if not found:
            expected = f"at least max-num-seqs, {min(tried[0]):,}"
            raise ConfigError("max-num-batched-tokens", max(tried[1]), expected)
        return found
