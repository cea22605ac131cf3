"""Admissions before a `VirtualEngine`: the product's, and bounds for a search."""

import math
from dataclasses import dataclass, field

from serving.policy.admission.admission import Admission
from serving.policy.admission.entry import Counted, Entry, Outcome
from serving.policy.admission.refusal import Refused
from serving.policy.admission.work import Client, Work
from tests.serving.policy.admission.virtual_engine import Call, Refusal


@dataclass(slots=True)
class AdmissionGate:
    """The product's policy; the engine counts exactly."""

    admission: Admission
    _entries: dict[int, Entry] = field(default_factory=dict)

    def enter(self, call: Call) -> Refusal | None:
        work = Work(
            client=Client(),
            work_class=call.work_class,
            sequences=1,
            prompt_tokens=call.prompt_tokens,
            new_tokens_max=call.asked_tokens,
        )
        try:
            entry = self.admission.enter(work, call.at_s)
        except Refused as refused:
            return Refusal(message=str(refused), retry_after_s=refused.retry_after_s)
        counted = Counted(
            sequences=1, prompt_tokens=call.prompt_tokens, new_tokens_max=call.asked_tokens
        )
        self.admission.begin(entry, counted, call.at_s)
        self._entries[id(call)] = entry
        return None

    def first_token(self, call: Call, now_s: float) -> None:
        self.admission.first_token(self._entries[id(call)], now_s)

    def made(self, call: Call) -> None:
        self.admission.made(self._entries[id(call)], 1)

    def end(self, call: Call, now_s: float) -> None:
        entry = self._entries.pop(id(call))
        by_itself = call.answer_tokens < call.asked_tokens
        self.admission.end(entry, made_tokens=call.answer_tokens, by_itself=by_itself, now_s=now_s)
        self.admission.leave(entry, Outcome.FINISHED, now_s)


@dataclass(slots=True, kw_only=True)
class BoundGate:
    """Bounds the prompts without a first token (the new one included) and the sequences; `inf`
    admits all. The first bound admits any prompt when none waits.
    """

    waiting_tokens_max: float = math.inf
    sequences_max: float = math.inf
    retry_after_s: float = 0.1
    _waiting_tokens: int = 0
    _sequences: int = 0

    @property
    def name(self) -> str:
        sequences = "" if math.isinf(self.sequences_max) else f", {self.sequences_max:,.0f} inside"
        return f"{self.waiting_tokens_max:,.0f} tokens wait{sequences}"

    def enter(self, call: Call) -> Refusal | None:
        waiting_tokens = self._waiting_tokens + call.prompt_tokens
        if self._waiting_tokens and waiting_tokens > self.waiting_tokens_max:
            return Refusal(message="prompts", retry_after_s=self.retry_after_s)
        if self._sequences + 1 > self.sequences_max:
            return Refusal(message="sequences", retry_after_s=self.retry_after_s)
        self._waiting_tokens = waiting_tokens
        self._sequences += 1
        return None

    def first_token(self, call: Call, now_s: float) -> None:
        del now_s
        self._waiting_tokens -= call.prompt_tokens

    def made(self, call: Call) -> None:
        """See `Gate`."""

    def end(self, call: Call, now_s: float) -> None:
        del call, now_s
        self._sequences -= 1
