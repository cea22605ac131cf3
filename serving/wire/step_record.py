"""One step of a run as a profile shows it: plain, frozen, the same live and in virtual time.

Arrays go by position in the partition, or by rank; `chips` says which chip sat in each position.
`protos/ultraserve/v1/recording.proto` says what the fields mean.
"""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

from serving.wire.machine_state import Count, Plain

Seat = Annotated[int, Meta(ge=-1)]
"""A chip by its number, or -1 where none sits."""

PREFILL_SHARE: Final = 0.9
"""Of a step's tokens: from this share of prompt tokens on, a step is told among the prefills. A
convention of the report; nothing is computed by it."""


class StepPhase(StrEnum):
    """What a step does: nearly only prompts, some of both, or no prompt at all."""

    PREFILL = "prefill"
    MIXED = "mixed"
    DECODE = "decode"


class EngineBusy(Plain, frozen=True, kw_only=True):
    """How long one engine of each position is busy in the step."""

    engine: str
    busy_ns: tuple[Count, ...]


class StepRecord(Plain, frozen=True, kw_only=True):
    """One step, in emulated time.

    `decode_tokens` are those of requests with one new token over a context, the last token of a
    prompt that was computed up to it among them. The queues are empty when unknown.
    """

    step: Count
    begin_ns: Count
    pause_ns: Count
    duration_ns: Count
    prefill_tokens: tuple[Count, ...]
    decode_tokens: tuple[Count, ...]
    requests_running: tuple[Count, ...]
    requests_waiting: tuple[Count, ...]
    kv_blocks_used: tuple[Count, ...]
    chips: tuple[Seat, ...]
    engines: tuple[EngineBusy, ...]
    watts: tuple[float, ...]
    flops: tuple[float, ...]
    hbm_bytes: tuple[float, ...]
    link_bytes: tuple[float, ...]
    parts_ns: dict[str, float]
    bound: dict[str, str]

    @property
    def end_ns(self) -> int:
        """When its work ends."""
        return self.begin_ns + self.duration_ns

    @property
    def tokens(self) -> int:
        """Tokens that were computed."""
        return sum(self.prefill_tokens) + sum(self.decode_tokens)

    @property
    def phase(self) -> StepPhase:
        """Which steps it is told among."""
        return phase_of(sum(self.prefill_tokens), self.tokens)


class StepWhatIf(Plain, frozen=True, kw_only=True):
    """One sampled step: its duration, and what it would be with one resource faster.

    Attributes:
        duration_ns: of the kept batch, costed again.
        what_if_ns: duration by what is `factor` times as fast, or spread evenly; see
            `emulator.ultraserver.what_if.what_if_ns`.
        samples: sampled steps of the recording.
    """

    step: Count
    phase: StepPhase
    duration_ns: Count
    factor: float
    what_if_ns: dict[str, Count]
    samples: Count


class StepPage(Plain, frozen=True, kw_only=True):
    """Some of the records, in order; `next_step` is where the next page begins."""

    steps: tuple[StepRecord, ...]
    next_step: Count


def phase_of(prefill_tokens: int, tokens: int) -> StepPhase:
    """The phase of a step with so many prompt tokens among its tokens."""
    if not prefill_tokens:
        return StepPhase.DECODE
    return StepPhase.PREFILL if prefill_tokens >= PREFILL_SHARE * tokens else StepPhase.MIXED
