"""Our attributes of a request's spans, each once: name, type, unit, help.

Names follow OpenTelemetry: lower case, dots between name spaces; the unit ends the name. vLLM's own
attributes keep their names; those of `EMULATED_LATENCIES` are in emulated seconds.
"""

from dataclasses import dataclass
from typing import Final, Literal

_SPACE: Final = "ultraserve."


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanAttribute:
    """One attribute; `unit` may be empty. Raises ValueError for a foreign name."""

    name: str
    kind: Literal["string", "string[]", "int", "int[]", "double"] = "double"
    unit: str = ""
    help: str

    def __post_init__(self) -> None:
        if not self.name.startswith(_SPACE):
            raise ValueError(f"{self.name}: a name of ours begins with {_SPACE}")


SYSTEM: Final = SpanAttribute(
    name="ultraserve.system",
    kind="string",
    help="The machine that is emulated, as the catalog names it.",
)
RANK: Final = SpanAttribute(
    name="ultraserve.rank",
    kind="int",
    help="The rank that computed its tokens; the last one, where several did.",
)
RANKS: Final = SpanAttribute(
    name="ultraserve.ranks",
    kind="int[]",
    help="All ranks that computed some of it, in their order: several after a loss of chips.",
)
CHIPS: Final = SpanAttribute(
    name="ultraserve.chips",
    kind="int[]",
    help="The chips that made that rank when it last computed, numbered as in `ultraserve state`.",
)
WEIGHTS: Final = SpanAttribute(
    name="ultraserve.weights",
    kind="string[]",
    help="The versions of the weights that made its tokens, in their order.",
)
DILATION: Final = SpanAttribute(
    name="ultraserve.dilation",
    unit="wall s per emulated s",
    help="How much slower than the emulated machine the server runs.",
)
BEGIN_S: Final = SpanAttribute(
    name="ultraserve.emulated.begin_s",
    unit="emulated s",
    help="When it came to the engine's queue; of a phase, when that began.",
)
SCHEDULED_S: Final = SpanAttribute(
    name="ultraserve.emulated.scheduled_s",
    unit="emulated s",
    help="The begin of its first step.",
)
FIRST_TOKEN_S: Final = SpanAttribute(
    name="ultraserve.emulated.first_token_s",
    unit="emulated s",
    help="The end of the step that made its first token.",
)
END_S: Final = SpanAttribute(
    name="ultraserve.emulated.end_s",
    unit="emulated s",
    help="The end of the step that made its last token; of a phase, when that ended.",
)
WALL_FIRST_TOKEN_S: Final = SpanAttribute(
    name="ultraserve.wall.time_to_first_token_s",
    unit="wall s",
    help="From its arrival to its first token as the server's clock saw it.",
)
WALL_E2E_S: Final = SpanAttribute(
    name="ultraserve.wall.e2e_s",
    unit="wall s",
    help="From its arrival to its last token as the server's clock saw it.",
)
CHIP_JOULES: Final = SpanAttribute(
    name="ultraserve.chip_joules",
    unit="J, modelled",
    help="Its share of what the chips drew in its steps.",
)
FACILITY_JOULES: Final = SpanAttribute(
    name="ultraserve.facility_joules",
    unit="J, modelled",
    help="Its share of what chips, their part of the racks and cooling drew in its steps.",
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
