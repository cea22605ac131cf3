"""Writes the calls of a plan: assigns keys, caps lengths, counts cuts."""

from collections.abc import Hashable, Mapping
from typing import Any

from loadgen.records.request import Role
from loadgen.workloads.recording import NS_PER_S
from loadgen.workloads.session_plan import CallPlan, LengthCuts, PromptSegment
from loadgen.workloads.workload_spec import WorkloadSpec

Segments = tuple[PromptSegment, ...]


class CallWriter:
    """Makes segments and calls of one plan, in the order of its sessions.

    Keys count up in that order, so the first sessions' keys do not depend on how many follow.
    """

    def __init__(self, spec: WorkloadSpec) -> None:
        self.keys = 0
        self.left_out_calls = 0
        self._think_ns = round(spec.think_s * NS_PER_S)
        self._schema: Mapping[str, Any] | None = spec.output_schema
        self._max_input_tokens = spec.max_input_tokens
        self._max_output_tokens = spec.max_output_tokens
        self._keys: dict[Hashable, int] = {}
        self._segments: dict[tuple[Hashable, int, Role], PromptSegment] = {}
        self._cut_inputs: list[int] = []
        self._cut_outputs: list[int] = []

    def own(self, tokens: int, role: Role = "user") -> PromptSegment:
        """Make a unique piece."""
        self.keys += 1
        return PromptSegment(key=self.keys - 1, tokens=tokens, role=role)

    def same(
        self, name: Hashable, tokens: int, *, role: Role = "user", text: str | None = None
    ) -> PromptSegment:
        """Make a piece that shares its beginning with all of that name."""
        segment = self._segments.get((name, tokens, role))
        if segment is None:
            key = self._keys.setdefault(name, self.keys)
            self.keys = max(self.keys, key + 1)
            segment = PromptSegment(key=key, tokens=tokens, role=role, text=text)
            self._segments[name, tokens, role] = segment
        return segment

    def call(
        self, history: Segments, own: Segments, output_tokens: int, *, after: tuple[int, ...] = ()
    ) -> CallPlan | None:
        """Make the call with the prompt `history` + `own`, cut to the caps.

        None if the history of a dependent call leaves no space for another token.
        """
        cap = self._max_input_tokens
        segments = history + own
        if cap is not None:
            tokens = sum(segment.tokens for segment in segments)
            if tokens > cap:
                if after and sum(segment.tokens for segment in history) >= cap:
                    return None
                segments = _cut(segments, cap)
                self._cut_inputs.append(tokens - cap)
        if self._max_output_tokens is not None and output_tokens > self._max_output_tokens:
            self._cut_outputs.append(output_tokens - self._max_output_tokens)
            output_tokens = self._max_output_tokens
        return CallPlan(
            segments=segments,
            output_tokens=output_tokens,
            after=after,
            think_ns=self._think_ns if after else 0,
            output_schema=self._schema,
        )

    def reply(
        self, position: int, call: CallPlan, *, role: Role = "assistant", text: str | None = None
    ) -> PromptSegment:
        """Make the piece for the reply of the call at `position`."""
        self.keys += 1
        return PromptSegment(
            key=self.keys - 1, tokens=call.output_tokens, role=role, reply_of=position, text=text
        )

    def cuts(self) -> LengthCuts:
        """The cuts so far."""
        return LengthCuts(
            max_input_tokens=self._max_input_tokens,
            max_output_tokens=self._max_output_tokens,
            input_cut_requests=len(self._cut_inputs),
            input_tokens_cut=sum(self._cut_inputs),
            output_cut_requests=len(self._cut_outputs),
            output_tokens_cut=sum(self._cut_outputs),
        )


def _cut(segments: Segments, tokens: int) -> Segments:
    """The first `tokens` of the segments."""
    kept: list[PromptSegment] = []
    for segment in segments:
        if not tokens:
            break
        taken = min(segment.tokens, tokens)
        tokens -= taken
        kept.append(segment if taken == segment.tokens else segment.cut(taken))
    return tuple(kept)
