"""One engine step at the emulator's surface: each rank's work and its outputs.

Frozen and plain, structs where they are many. A difference, like vLLM's SchedulerOutput: a chip
remembers earlier requests.
"""

from dataclasses import dataclass

import msgspec

from emulator.arrays import Float32s, Int32s
from emulator.specs.sampling import SamplingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request new to its rank, also after a move.

    `token_ids` begin with the `prompt_tokens` of the prompt; `block_ids` are in context order.
    """

    request_id: str
    token_ids: list[int]
    prompt_tokens: int
    sampling: SamplingSpec
    block_ids: list[int]


class Scheduled(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`new_tokens` of a request, from `first_position` on, computed in this step.

    `new_block_ids` are appended to the block table, or replace it if `replaces_blocks` (a preempted
    request that resumes). `draft_tokens` are guesses after the request's own tokens, the last of
    `new_tokens`.
    """

    request_id: str
    first_position: int
    new_tokens: int
    new_block_ids: list[int] = []
    replaces_blocks: bool = False
    draft_tokens: list[int] = []


class RankStep(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One rank's work in one step.

    `grammar_rows`: requests of the bitmask's rows, in order; `unseen`: requests whose token no
    client gets, as another engine makes it again.
    """

    rank: int
    new: list[NewRequest]
    scheduled: list[Scheduled]
    finished: list[str]
    block_copies: list[tuple[int, int]] = []
    grammar_rows: list[str] = []
    unseen: list[str] = []

    @property
    def is_idle(self) -> bool:
        """Whether the rank computes no token in this step."""
        return not self.scheduled


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTransfer:
    """Keys and values of a request on their way from one rank's blocks to another's, in order.

    `tokens` of them cross the links: the receiver has those before them in blocks of its own. They
    may be a part, the last one or not. Those of a part `with_step` are computed in the step that it
    begins with, and each layer goes when it is computed.
    """

    request_id: str
    from_rank: int
    to_rank: int
    from_blocks: list[int]
    to_blocks: list[int]
    tokens: int
    with_step: bool = False
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSource:
    """Another engine that has a request's KV, or is to have it: its address and id, and the id of
    the request where the prompt is computed.
    """

    host: str
    port: int
    engine_id: str
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPull:
    """Keys and values of a prompt on their way from another engine into blocks of a rank, in order.

    `tokens` of the `prompt_tokens` cross the links; the blocks go from the source's `first_block`
    on. `prompt` is the prompt's digest; the source's rank has `from_chips`. With `is_there` they
    came while the prompt was computed, and the step that begins reads them.
    """

    request_id: str
    to_rank: int
    to_blocks: list[int]
    tokens: int
    prompt_tokens: int
    prompt: bytes
    source: KvSource
    first_block: int
    from_chips: int
    is_there: bool = False
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPush:
    """Keys and values that the step which begins computes, for another engine: `tokens` of a prompt
    of `prompt_tokens`, in `blocks` of `rank`, the prompt's from `first_block` on.

    Each layer goes when it is computed. Without blocks the prompt is given up. `prompt` is its
    digest; `target` is the engine that decodes it, with the request's id here.
    """

    target: KvSource
    rank: int
    blocks: list[int]
    first_block: int
    tokens: int
    prompt_tokens: int
    prompt: bytes
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KvAwait:
    """A request waits for room for keys and values that another engine is to hold until then."""

    request_id: str
    source: KvSource


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRelease:
    """Keys and values that another engine holds, and that a request here does not need."""

    request_id: str
    source: KvSource


KvMove = KvTransfer | KvPull | KvPush | KvAwait | KvRelease
"""What a scheduler's decision has to say of keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLogprobs:
    """Log-probabilities of some rows: the token itself first, then the most likely ones.

    `token_ids` int32 and `logprobs` float32 [rows, 1 + k]; `ranks` [rows] int32, 1 for the most
    likely token. Narrower rows are padded.
    """

    token_ids: Int32s
    logprobs: Float32s
    ranks: Int32s


class RankOutput(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One rank's samples: a token for each of `request_ids`, in order.

    A request whose drafts were right is there as often as it has new tokens.

    Attributes:
        token_ids: [len(request_ids)] int32.
        logprobs: rows of the distinct `request_ids`, if at least one requested them; those with
            drafts do not.
        prompt_logprobs: of requests whose prompt this step completed, a row per prompt token but
            the first.
        drafts: guesses of what follows the requests' texts, made by the chips for the next step.
    """

    rank: int
    request_ids: list[str]
    token_ids: Int32s
    logprobs: RowLogprobs | None
    prompt_logprobs: dict[str, RowLogprobs]
    drafts: dict[str, list[int]] = {}
