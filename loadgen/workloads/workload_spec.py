"""Options of a workload."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from loadgen import option_values
from loadgen.errors import FileError, OptionError
from loadgen.workloads.drawn_defaults import REQUESTS
from loadgen.workloads.trace_lines import read_text
from startup.typed_options import option

# Sessions are planned before any is sent, in some hundred bytes each, and no context is longer:
# more is a slip of the hand, not a run.
COUNT_MAX: Final = 10_000_000

History = Literal["planned", "served"]
TraceFormat = Literal["auto", "azure2023", "mooncake", "sharegpt", "burstgpt", "servegen"]


class Lengths(Protocol):
    """A distribution of whole numbers from 1 on; `words` is its original text.

    The first draws of a seed do not depend on their number.
    """

    @property
    def words(self) -> str:
        """As it was written."""
        ...

    def draw(self, chance: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Draw lengths, int64[count]."""
        ...


def read_output_schema(path: Path) -> Mapping[str, Any]:
    """Read the JSON schema of replies; raises FileError, with the line, if it is no JSON object."""
    try:
        schema = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise FileError(path, f"is not JSON: {error.msg}", line=error.lineno) from error
    except RecursionError as error:
        raise FileError(path, "is nested too deep") from error
    if not isinstance(schema, dict):
        raise FileError(path, "expected a JSON object, a schema", line=1)
    return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Either a trace (None: lengths are drawn) or synthetic lengths, and the options over them.

    - `sessions` None: as many as the trace has rows, or as arrivals have times for.
    - `input_lengths` are those of each call's own piece, beside shared pieces and history.
      With a trace they replace the recorded lengths, as do `output_lengths`.
    - `shared_prefix_tokens` of system prompt come before each session's first words, one of
      `shared_prefix_groups`, drawn at random.
    - `turns` counts a session's calls, each with all before it as history; the most of a
      trace of conversations. `think_s` of its arrivals' time lies between them.
    - `fan_out` is (width, depth): a call, then `depth` times `width` concurrent calls that begin
      with all before, and one that joins their replies.
    - `long_share` of the sessions, drawn at random, begin with `long_tokens`.
    - `priority` of each request, the lowest the most urgent, as vLLM has it.
    - `max_input_tokens` cuts prompts at their end, and ends a session whose history fills it.

    Raises OptionError for contradictions.
    """

    GROUP = "workload"

    trace: Path | None = option(
        None,
        "recorded workload: Azure 2023 and 2024 CSV, Mooncake JSONL, ShareGPT JSON, BurstGPT CSV, "
        "or a folder of ServeGen's clients, drawn by the seed (default of ultraserve-loadgen: a "
        "synthetic one in the Azure format that comes with it)",
    )
    trace_format: TraceFormat = option("auto", "format of --trace (default: auto, by its content)")
    input_lengths: Lengths | None = None
    output_lengths: Lengths | None = None
    sessions: int | None = option(
        None,
        "send N sessions: the first N rows of a trace (default: all), or so many as are drawn "
        f"(default of predictions and sweeps: {REQUESTS})",
        *("--requests", "--sessions"),
        type=option_values.count,
    )
    window_s: tuple[float, float] | None = option(
        None,
        "only what the trace recorded from one time to another, as in 10m-70m",
        type=option_values.window_s,
        metavar="FROM-TO",
    )
    shared_prefix_tokens: int = 0
    shared_prefix_groups: int = 1
    turns: Lengths | None = None
    think_s: float = option(
        0.0,
        "time between a reply and the session's next request, in the time that --rate is in",
        type=option_values.duration_s,
        metavar="TIME",
    )
    history: History = option(
        "planned",
        "what stands for earlier replies in a later turn: what was planned, the same in every run, "
        "or what the server said",
    )
    fan_out: tuple[int, int] | None = option(
        None,
        "an agent: a plan, WIDTH calls at once that share its context, a join; DEPTH times",
        type=option_values.count_times_count,
        metavar="WIDTH[xDEPTH]",
    )
    long_share: float = 0.0
    long_tokens: int = 0
    output_schema: Mapping[str, Any] | None = option(
        None,
        "structured output: replies have to keep to the JSON schema in FILE",
        "--schema",
        type=lambda text: read_output_schema(Path(text)),
        metavar="FILE",
    )
    priority: int = option(
        0,
        "vLLM's priority of each request: the lowest goes first, where the scheduling policy is "
        "priority; ultraserve serves all above 0 as batch work",
        type=option_values.count_or_zero,
    )
    max_input_tokens: int | None = option(
        None, "cut longer prompts to N tokens", type=option_values.count
    )
    max_output_tokens: int | None = option(
        None, "cut longer replies to N tokens", type=option_values.count
    )

    def __post_init__(self) -> None:
        for flag, number in (
            ("--requests", self.sessions),
            ("--max-input-tokens", self.max_input_tokens),
            ("--max-output-tokens", self.max_output_tokens),
        ):
            if number is not None and not 1 <= number <= COUNT_MAX:
                raise OptionError(flag, number, f"a number from 1 to {COUNT_MAX:,}")
        self._check_window()
        self._check_shape()
        self._check_prefix()

    def _check_window(self) -> None:
        if self.window_s is None:
            return
        window = "{:g}-{:g}".format(*self.window_s)
        if self.trace is None:
            raise OptionError("--window", window, "it beside --trace")
        if not 0.0 <= self.window_s[0] < self.window_s[1]:
            raise OptionError("--window", window, "FROM before TO, from 0 on")

    def _check_shape(self) -> None:
        if self.turns is not None and self.fan_out is not None:
            expected = "no --turns: a fan-out is a session of its own kind"
            raise OptionError("--fan-out", "{}x{}".format(*self.fan_out), expected)
        if self.fan_out is not None and min(self.fan_out) < 1:
            raise OptionError("--fan-out", "{}x{}".format(*self.fan_out), "WIDTHxDEPTH from 1 on")
        if not 0.0 <= self.think_s < math.inf:
            raise OptionError("--think", f"{self.think_s:g}", "seconds from 0 on")
        if self.think_s and self.trace is None and self.turns is None and self.fan_out is None:
            expected = "it beside --turns, --fan-out or a trace of conversations"
            raise OptionError("--think", f"{self.think_s:g}", expected)
        if not 0.0 <= self.long_share <= 1.0 or (self.long_share > 0.0) != (self.long_tokens > 0):
            value = f"{self.long_share:g}:{self.long_tokens}"
            expected = "SHARE:TOKENS, a share from 0 to 1 and a length"
            raise OptionError("--long-context", value, expected)

    def _check_prefix(self) -> None:
        prefix = f"{self.shared_prefix_tokens}x{self.shared_prefix_groups}"
        if self.shared_prefix_tokens < 0 or self.shared_prefix_groups < 1:
            raise OptionError("--shared-prefix", prefix, "TOKENS[xGROUPS], from 1 on")
        if self.max_input_tokens is not None and self.max_input_tokens <= self.shared_prefix_tokens:
            expected = f"less than --max-input-tokens, {self.max_input_tokens}"
            raise OptionError("--shared-prefix", prefix, expected)
