"""Plans of sessions without texts: lengths of pieces, shared pieces, dependencies of calls.

`loadgen.prompts` finds the words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from loadgen.records.arrays import Int64s
from loadgen.records.plain_number import counted
from loadgen.records.request import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSegment:
    """A piece of a prompt, of `tokens` tokens.

    Pieces of one key are the same text, the shorter the beginning of the longer; pieces of
    different keys differ within their first 16 tokens. `reply_of` is the position of the call whose
    reply this stands for. `text` is a recorded text, whose first `tokens` tokens are the piece.
    Raises ValueError for a length below 1 or a negative key.
    """

    key: int
    tokens: int
    role: Role = "user"
    reply_of: int | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.key < 0:
            raise ValueError(f"a segment of {self.tokens} tokens, key {self.key}")

    def cut(self, tokens: int) -> Self:
        """The first `tokens` of it."""
        return replace(self, tokens=tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """One planned request: see `records.request.Call`. The prompt is its segments in order."""

    segments: tuple[PromptSegment, ...]
    output_tokens: int
    after: tuple[int, ...] = ()
    think_ns: int = 0
    output_schema: Mapping[str, Any] | None = None

    @property
    def input_tokens(self) -> int:
        """Length of the prompt."""
        return sum(segment.tokens for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCuts:
    """Caps on lengths (None: no cap), and the amounts cut."""

    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    input_cut_requests: int = 0
    input_tokens_cut: int = 0
    output_cut_requests: int = 0
    output_tokens_cut: int = 0

    @property
    def words(self) -> tuple[str, ...]:
        """A sentence for each cap that cut."""
        caps = (
            ("--max-input-tokens", self.input_cut_requests, self.input_tokens_cut),
            ("--max-output-tokens", self.output_cut_requests, self.output_tokens_cut),
        )
        return tuple(
            f"{option} cut {counted(requests, 'request')} by {counted(tokens, 'token')} in all"
            for option, requests, tokens in caps
            if requests
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkloadPlan:
    """All sessions of a class, each a tuple of calls in the order of a `records.request.Session`.

    `arrivals_ns` are recorded times since the first, int64[sessions], None if not recorded. `keys`
    is one more than the largest key. `words` describes the plan for reports.
    """

    sessions: Sequence[tuple[CallPlan, ...]]
    arrivals_ns: Sequence[int] | None
    keys: int
    words: str
    cuts: LengthCuts
    notes: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        """Number of calls."""
        return sum(len(calls) for calls in self.sessions)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SingleRequests:
    """A plan whose sessions are single requests, as columns: the same lengths, and no words.

    `blocks` names each prompt's blocks of `block_tokens` tokens, if recorded; otherwise prompts
    share nothing. The rest is as of `WorkloadPlan`.
    """

    input_tokens: Int64s  # [sessions]
    output_tokens: Int64s  # [sessions]
    blocks: Sequence[Sequence[int]] | None
    block_tokens: int
    arrivals_ns: Sequence[int] | None
    words: str
    cuts: LengthCuts
    notes: tuple[str, ...] = ()
