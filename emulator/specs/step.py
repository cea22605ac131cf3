"""One engine step at the emulator's surface: each rank's work and its outputs.

Frozen and plain, so that it can be sent to another process and compared by value in tests. It is a
difference, as vLLM's own SchedulerOutput: a chip remembers the requests of earlier steps.
"""

from dataclasses import dataclass, field

from emulator.arrays import Float32s, Int32s
from emulator.specs.sampling import SamplingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request new to its rank, also after it was moved.

    Attributes:
        token_ids: all tokens known so far; the first `prompt_tokens` of them are the prompt.
        block_ids: KV blocks, in the order of the context.
    """

    request_id: str
    token_ids: list[int]
    prompt_tokens: int
    sampling: SamplingSpec
    block_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """`new_tokens` of a request, from `first_position` on, computed in this step.

    Attributes:
        new_block_ids: appended to the block table, or the whole table when `replaces_blocks`
            (a preempted request that resumes).
    """

    request_id: str
    first_position: int
    new_tokens: int
    new_block_ids: list[int] = field(default_factory=list)
    replaces_blocks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """One rank's work in one step. `grammar_rows` names the requests constrained by the rows of the
    step's grammar bitmask, in order.
    """

    rank: int
    new: list[NewRequest]
    scheduled: list[Scheduled]
    finished: list[str]
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    grammar_rows: list[str] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        """Whether the rank computes no token in this step."""
        return not self.scheduled


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLogprobs:
    """Log-probabilities of some rows: the token itself first, then the most likely ones.

    Attributes:
        token_ids: [rows, 1 + k] int32; logprobs: [rows, 1 + k] float32;
        ranks: [rows] int32, 1 for the most likely token. Rows that asked for fewer are padded.
    """

    token_ids: Int32s
    logprobs: Float32s
    ranks: Int32s


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutput:
    """One rank's samples: one token for each of `request_ids`, in order.

    Attributes:
        token_ids: [len(request_ids)] int32.
        logprobs: rows of `request_ids`, when at least one of them asked.
        prompt_logprobs: by request whose prompt was completed in this step, one row per prompt
            token but the first.
    """

    rank: int
    request_ids: list[str]
    token_ids: Int32s
    logprobs: RowLogprobs | None
    prompt_logprobs: dict[str, RowLogprobs]
