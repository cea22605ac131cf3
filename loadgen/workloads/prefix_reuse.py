"""Prefix reuse of a workload: the part of its prompts that a prefix cache may find."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.workloads.session_plan import CallPlan, PromptSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixReuse:
    """Tokens of all prompts, and those that also begin an earlier prompt.

    `reused_tokens` is the maximum, for an unbounded cache that began empty: replies in later
    prompts count as found, because the server made them.
    """

    input_tokens: int
    reused_tokens: int


def prefix_reuse(sessions: Sequence[tuple[CallPlan, ...]]) -> PrefixReuse:
    """Add up over all calls, in planned order."""
    calls = [call for session in sessions for call in session]
    beginnings = Counter(call.segments[0].key for call in calls)
    known = _Beginnings()
    return PrefixReuse(
        input_tokens=sum(call.input_tokens for call in calls),
        # Most workloads share little: what begins as nothing else does needs no look.
        reused_tokens=sum(
            known.add(call.segments) for call in calls if beginnings[call.segments[0].key] > 1
        ),
    )


class _Beginnings:
    """All prompts so far as a tree: a node is a row of whole segments from the start."""

    def __init__(self) -> None:
        self._longest: dict[tuple[int, int], int] = {}  # (node, key): the longest piece behind it
        self._nodes: dict[tuple[int, int, int], int] = {}  # (node, key, tokens): the next node
        self._latest: tuple[Sequence[PromptSegment], int, int] = (
            (),
            0,
            0,
        )  # its node, and its tokens

    def add(self, segments: Sequence[PromptSegment]) -> int:
        """Add a prompt; returns how many of its tokens begin an earlier one."""
        node, found_tokens, known = 0, 0, True
        latest, at, tokens = self._latest
        if len(latest) < len(segments) and segments[: len(latest)] == latest:
            # The next turn of a conversation: the walk goes on from the one before.
            node, found_tokens = at, tokens
        else:
            latest, tokens = (), 0
        for each in segments[len(latest) :]:
            longest = self._longest.get((node, each.key), 0)
            step = (node, each.key, each.tokens)
            if known:
                # Of pieces with one key the shorter is the beginning of the longer.
                replied = each.reply_of is not None
                found_tokens += each.tokens if replied else min(each.tokens, longest)
                known = replied or step in self._nodes
            self._longest[node, each.key] = max(longest, each.tokens)
            node = self._nodes.setdefault(step, len(self._nodes) + 1)
            tokens += each.tokens
        self._latest = (segments, node, tokens)
        return found_tokens
