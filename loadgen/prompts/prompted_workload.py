"""A plan with its words: sessions of requests, made on demand in microseconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from loadgen.prompts.message_run import MessageRun, message_runs
from loadgen.prompts.template_cost import Roles
from loadgen.prompts.wording import Wording
from loadgen.records.request import Call, Message, Prompt, Request, Session
from loadgen.workloads.session_plan import CallPlan, PromptSegment, WorkloadPlan

WARMUP_INPUT_TOKENS: Final = 16
WARMUP_OUTPUT_TOKENS: Final = 2  # the second one takes a decode step

Said = tuple[MessageRun, list[Prompt]]
"""A message and the pieces of its content."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptedWorkload:
    """The sessions of `plan` as class `name`; a `Workload` of `loadgen.dispatch`.

    `first_requests` are the ids of the sessions' first requests and, last, the number of requests.
    `taken` maps the roles of a prompt's messages to the tokens to take off each for the template,
    or is empty. `merged` prompts are one message, but for replies that `served_history` will
    replace; otherwise each role has its own. The first `keep_replies` requests keep their replies,
    and so do those whose replies later ones carry. `words` and `notes` describe prompts for
    reports.
    """

    plan: WorkloadPlan
    name: str
    wording: Wording
    first_requests: Sequence[int]
    merged: bool
    taken: Mapping[Roles, tuple[int, ...]] = field(default_factory=dict)
    keep_replies: int = 0
    served_history: bool = False
    words: str = ""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.first_requests) - 1

    @property
    def requests(self) -> int:
        """Number of requests in all sessions."""
        return self.first_requests[-1]

    def requests_of(self, index: int) -> int:
        """Number of requests of session `index`."""
        return self.first_requests[index + 1] - self.first_requests[index]

    def session(self, index: int) -> Session:
        """Make session `index`; raises IndexError."""
        plans = self.plan.sessions[index]
        first = self.first_requests[index]
        carried = _carried(plans) if self.served_history else frozenset()
        calls = []
        for turn, plan in enumerate(plans):
            request_id = first + turn
            keep = request_id < self.keep_replies or turn in carried
            request = self._request(plan, request_id, session_id=index, turn=turn, keep_reply=keep)
            calls.append(Call(request=request, after=plan.after, think_ns=plan.think_ns))
        return Session(session_id=index, calls=tuple(calls))

    def input_tokens(self, segments: Sequence[PromptSegment]) -> int:
        """Tokens of a prompt of these segments, template included."""
        return self._lengths(segments)[1]

    def warmup_request(self, index: int) -> Request:
        """Make a short request outside the workload."""
        segment = PromptSegment(key=self.plan.keys + index, tokens=WARMUP_INPUT_TOKENS)
        plan = CallPlan(segments=(segment,), output_tokens=WARMUP_OUTPUT_TOKENS)
        return self._request(plan, index, session_id=index, turn=0, keep_reply=False)

    def _request(
        self, plan: CallPlan, request_id: int, *, session_id: int, turn: int, keep_reply: bool
    ) -> Request:
        segments = plan.segments
        if len(segments) == 1 and segments[0].text is None:  # the most usual kind, at full speed
            only = segments[0]
            taken = self.taken[(only.role,)][0] if self.taken else 0
            tokens = max(1, only.tokens - taken)
            content = self.wording.made(only.key, tokens)
            messages: tuple[Message, ...] = (Message(role=only.role, content=content),)
            input_tokens = tokens + taken
        else:
            messages, input_tokens = self._messages(segments)
        return Request(
            request_id=request_id,
            traffic_class=self.name,
            session_id=session_id,
            turn=turn,
            messages=messages,
            input_tokens=input_tokens,
            output_tokens=plan.output_tokens,
            output_schema=plan.output_schema,
            keep_reply=keep_reply,
        )

    def _messages(self, segments: Sequence[PromptSegment]) -> tuple[tuple[Message, ...], int]:
        """A prompt's messages and its tokens, template included."""
        runs, input_tokens = self._lengths(segments)
        said = [(run, [self.wording.piece(segment) for segment in run.segments]) for run in runs]
        if self.merged:
            said = self._merged(said)
        contents = [self.wording.joined(pieces) for _, pieces in said]
        if self.merged:
            contents[1:] = [self.wording.continued(content) for content in contents[1:]]
        messages = tuple(
            Message(role=run.role, content=content, reply_of=run.reply_of)
            for (run, _), content in zip(said, contents, strict=True)
        )
        return messages, input_tokens

    def _merged(self, said: Sequence[Said]) -> list[Said]:
        """One message of all, but for replies that the server's will replace."""
        merged: list[Said] = []
        for run, pieces in said:
            if merged and not (self._alone(run) or self._alone(merged[-1][0])):
                merged[-1][1].extend(pieces)
            else:
                merged.append((run, pieces))
        return merged

    def _lengths(self, segments: Sequence[PromptSegment]) -> tuple[list[MessageRun], int]:
        """Take the template's tokens off the contents; returns the prompt's tokens."""
        runs = message_runs(segments)
        if not self.taken:
            return runs, sum(run.tokens for run in runs)
        taken = self.taken[tuple(run.role for run in runs)]
        runs = [run.shorter(tokens) for run, tokens in zip(runs, taken, strict=True)]
        return runs, sum(run.tokens for run in runs) + sum(taken)

    def _alone(self, run: MessageRun) -> bool:
        """Whether the server's reply will replace this."""
        return self.served_history and run.reply_of is not None


def _carried(plans: Sequence[CallPlan]) -> frozenset[int | None]:
    """Positions of calls whose replies later calls hold."""
    return frozenset(segment.reply_of for plan in plans for segment in plan.segments)
