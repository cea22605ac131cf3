"""Neighbouring segments of one role: one message of a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from loadgen.records.request import Role
from loadgen.workloads.session_plan import PromptSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRun:
    """A message of `role`, or the reply to the call at `reply_of`."""

    role: Role
    segments: tuple[PromptSegment, ...]
    reply_of: int | None = None

    @property
    def tokens(self) -> int:
        """Length of the contents."""
        return sum(segment.tokens for segment in self.segments)

    def shorter(self, tokens: int) -> Self:
        """A copy with `tokens` fewer at its end; a negative number adds.

        At least one token stays, and a recorded text stays whole.
        """
        kept = list(self.segments)
        while tokens and kept[-1].text is None:
            last = kept.pop()
            less = min(tokens, last.tokens - (not kept))
            tokens -= less
            if less < last.tokens:
                kept.append(last.cut(last.tokens - less))
                break
        return replace(self, segments=tuple(kept))


def message_runs(segments: Sequence[PromptSegment]) -> list[MessageRun]:
    """Join neighbours of one role; a reply stands alone."""
    runs: list[MessageRun] = []
    first = 0
    for place in range(1, len(segments) + 1):
        if place < len(segments) and _joined(segments[first], segments[place]):
            continue
        runs.append(
            MessageRun(
                role=segments[first].role,
                segments=tuple(segments[first:place]),
                reply_of=segments[first].reply_of,
            )
        )
        first = place
    return runs


def roles_of(segments: Sequence[PromptSegment]) -> tuple[Role, ...]:
    """The roles of the messages that `message_runs` would make."""
    if len(segments) == 1:
        return (segments[0].role,)
    roles = [segments[0].role]
    roles += [new.role for old, new in pairwise(segments) if not _joined(old, new)]
    return tuple(roles)


def _joined(one: PromptSegment, other: PromptSegment) -> bool:
    return one.role == other.role and one.reply_of is None and other.reply_of is None
