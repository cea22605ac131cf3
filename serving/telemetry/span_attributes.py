"""Our attributes of a request's spans, each once: name, type, unit, help.

Names follow OpenTelemetry: lower case, dots between name spaces; the unit ends the name. vLLM's own
attributes keep their names; those of `EMULATED_LATENCIES` are in emulated seconds.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal

_SPACE: Final = "ultraserve."


@dataclass(frozen=True, slots=True)
class SpanAttribute:
    """One attribute; `unit` may be empty. Raises ValueError for a foreign name."""

    name: str
    help: str
    _: KW_ONLY
    kind: Literal["string", "string[]", "int", "int[]", "double"] = "double"
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.name.startswith(_SPACE):
            raise ValueError(f"{self.name}: a name of ours begins with {_SPACE}")


SYSTEM: Final = SpanAttribute(
    "ultraserve.system", "The machine that is emulated, as the catalog names it.", kind="string"
)
RANK: Final = SpanAttribute(
    "ultraserve.rank",
    "The rank that computed its tokens; the last one, where several did.",
    kind="int",
)
RANKS: Final = SpanAttribute(
    "ultraserve.ranks",
    "All ranks that computed some of it, in their order: several after a loss of chips.",
    kind="int[]",
)
CHIPS: Final = SpanAttribute(
    "ultraserve.chips",
    "The chips that made that rank when it last computed, numbered as in `ultraserve state`.",
    kind="int[]",
)
WEIGHTS: Final = SpanAttribute(
    "ultraserve.weights",
    "The versions of the weights that made its tokens, in their order.",
    kind="string[]",
)
DILATION: Final = SpanAttribute(
    "ultraserve.dilation",
    "How much slower than the emulated machine the server runs.",
    unit="wall s per emulated s",
)
BEGIN_S: Final = SpanAttribute(
    "ultraserve.emulated.begin_s",
    "When it came to the engine's queue; of a phase, when that began.",
    unit="emulated s",
)
SCHEDULED_S: Final = SpanAttribute(
    "ultraserve.emulated.scheduled_s", "The begin of its first step.", unit="emulated s"
)
FIRST_TOKEN_S: Final = SpanAttribute(
    "ultraserve.emulated.first_token_s",
    "The end of the step that made its first token.",
    unit="emulated s",
)
END_S: Final = SpanAttribute(
    "ultraserve.emulated.end_s",
    "The end of the step that made its last token; of a phase, when that ended.",
    unit="emulated s",
)
WALL_FIRST_TOKEN_S: Final = SpanAttribute(
    "ultraserve.wall.time_to_first_token_s",
    "From its arrival to its first token as the server's clock saw it.",
    unit="wall s",
)
WALL_E2E_S: Final = SpanAttribute(
    "ultraserve.wall.e2e_s",
    "From its arrival to its last token as the server's clock saw it.",
    unit="wall s",
)
CHIP_JOULES: Final = SpanAttribute(
    "ultraserve.chip_joules", "Its share of what the chips drew in its steps.", unit="J, modelled"
)
FACILITY_JOULES: Final = SpanAttribute(
    "ultraserve.facility_joules",
    "Its share of what chips, their part of the racks and cooling drew in its steps.",
    unit="J, modelled",
)

REQUEST_ATTRIBUTES: Final = (
    *(SYSTEM, RANK, RANKS, CHIPS, WEIGHTS, DILATION, BEGIN_S, SCHEDULED_S, FIRST_TOKEN_S, END_S),
    *(WALL_FIRST_TOKEN_S, WALL_E2E_S, CHIP_JOULES, FACILITY_JOULES),
)
"""Of vLLM's request span."""

PHASE_ATTRIBUTES: Final = (BEGIN_S, END_S, CHIP_JOULES, FACILITY_JOULES)
"""Of the spans below it; a waiting one has no joules."""

EMULATED_LATENCIES: Final = (
    "gen_ai.latency.time_to_first_token",
    "gen_ai.latency.e2e",
    "gen_ai.latency.time_in_queue",
    "gen_ai.latency.time_in_model_prefill",
    "gen_ai.latency.time_in_model_decode",
    "gen_ai.latency.time_in_model_inference",
)
"""vLLM's own, in emulated seconds: the first two converted from wall time by the clock's epochs."""
