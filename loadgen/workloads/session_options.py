"""Options of sessions that are typed in another form than a workload has them."""

from dataclasses import dataclass
from typing import Final

from loadgen import option_values
from loadgen.workloads.drawn_defaults import INPUT, OUTPUT
from startup.typed_options import option

LENGTHS: Final = "LENGTHS"


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """Tokens of prompts and replies, as typed: the same words in every command."""

    GROUP = "lengths"

    input: str | None = option(
        None,
        "draw the prompts' tokens, instead of or over a trace's: 512, uniform:64-1024, "
        "lognormal:MEAN,DEVIATION[,MIN-MAX] or histogram:FILE.csv (rows of length,weight) "
        f"(default: a trace's; of predictions without a trace {INPUT})",
        metavar=LENGTHS,
    )
    output: str | None = option(
        None,
        "the replies' tokens, written likewise (default: a trace's; of predictions without a trace "
        f"{OUTPUT})",
        metavar=LENGTHS,
    )


@dataclass(frozen=True, kw_only=True)
class SessionOptions(LengthOptions):
    """What `loadgen.workloads.class_specs` makes a `WorkloadSpec` of."""

    GROUP = "sessions: what is laid over lengths, recorded or drawn; a session is what arrives"

    shared_prefix: tuple[int, int] | None = option(
        None,
        "begin each prompt with one of GROUPS system prompts of TOKENS tokens (default: x1)",
        type=option_values.count_times_count,
        metavar="TOKENS[xGROUPS]",
    )
    turns: str | None = option(
        None, "turns of a conversation, as lengths are written: 4", metavar=LENGTHS
    )
    long_context: tuple[float, int] | None = option(
        None,
        "give a share of the sessions a prompt of so many tokens: 5%:32000",
        type=option_values.long_context,
        metavar="SHARE:TOKENS",
    )
