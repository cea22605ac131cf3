"""One admitted or queued request."""

from dataclasses import dataclass
from enum import StrEnum

from serving.policy.admission.wait import Wait
from serving.policy.admission.work import Work, WorkClass


class Stage(StrEnum):
    """Stages of an entry, in order; it may leave from any."""

    QUEUED = "queued"  # batch work at the gateway, without its turn
    WAITING = "waiting"  # the engine's, and a sequence of it has no token yet
    RUNNING = "running"  # every sequence has a token
    LEFT = "left"


class Outcome(StrEnum):
    """How an entry left."""

    FINISHED = "finished"
    ABORTED = "aborted"  # its client went, or its time was over
    FAILED = "failed"
    REFUSED = "refused"  # batch work that was told so after it had waited


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The engine's exact counts of sequences that begin, together."""

    sequences: int
    prompt_tokens: int
    new_tokens_max: int


@dataclass(slots=True)
class Entry:
    """State of one entry; changed by `Admission` alone.

    Sequences of a request (several prompts, `n`) share the estimate equally until they begin, then
    what the engine counted.

    Attributes:
        number: in the order of entering.
        entered_s, turn_s: emulated; from `turn_s` on the engine may have it.
        charged_tokens, charged_sequences: of its key's limits; estimated at first.
        declared_tokens, declared_sequences: asked of the engine so far; exact.
        wait: expected at `turn_s` until every sequence has a token; None: batch work, or over.
        sequences, prompt_tokens, new_tokens_max: of the part that has not ended.
        waiting_sequences, waiting_prompt_tokens: of the part without a token.
        begun_sequences: taken by the engine and not ended.
        estimated_tokens, estimated_new_tokens: of the part that the engine has not counted.
        counted_tokens: of all prompts that the engine has counted.
        made_tokens, ended_tokens: of all answers, and of the ended ones.
        passed_over: times that later batch work went first, because it fitted.
    """

    number: int
    work: Work
    entered_s: float
    turn_s: float
    charged_tokens: int
    charged_sequences: int
    sequences: int
    prompt_tokens: int
    new_tokens_max: int
    waiting_sequences: int
    waiting_prompt_tokens: int
    stage: Stage = Stage.QUEUED
    wait: Wait | None = None
    declared_tokens: int = 0
    declared_sequences: int = 0
    begun_sequences: int = 0
    estimated_tokens: int = 0
    estimated_new_tokens: int = 0
    counted_tokens: int = 0
    made_tokens: int = 0
    ended_tokens: int = 0
    passed_over: int = 0
    has_token: bool = False

    @classmethod
    def of(cls, work: Work, *, number: int, now_s: float) -> "Entry":
        """A new entry, all of it to do."""
        return cls(
            number=number,
            work=work,
            entered_s=now_s,
            turn_s=now_s,
            charged_tokens=work.prompt_tokens + work.new_tokens_max,
            charged_sequences=work.sequences,
            sequences=work.sequences,
            prompt_tokens=work.prompt_tokens,
            new_tokens_max=work.new_tokens_max,
            waiting_sequences=work.sequences,
            waiting_prompt_tokens=work.prompt_tokens,
            estimated_tokens=work.prompt_tokens,
            estimated_new_tokens=work.new_tokens_max,
        )

    @property
    def work_class(self) -> WorkClass:
        """Of its work."""
        return self.work.work_class

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens to compute of the part without a token."""
        return self.waiting_sequences if self.work.is_prefilled else self.waiting_prompt_tokens

    def begin(self, counted: Counted) -> None:
        """Replace the estimate's share by the engine's figures; adds unforeseen sequences."""
        foreseen = min(counted.sequences, self.sequences - self.begun_sequences)
        left = self.sequences - self.begun_sequences
        estimated = _share(self.estimated_tokens, foreseen, left)
        asked = _share(self.estimated_new_tokens, foreseen, left)
        more = counted.sequences - foreseen
        self.estimated_tokens -= estimated
        self.estimated_new_tokens -= asked
        self.begun_sequences += counted.sequences
        self.sequences += more
        self.waiting_sequences += more
        self.prompt_tokens += counted.prompt_tokens - estimated
        self.waiting_prompt_tokens += counted.prompt_tokens - estimated
        self.new_tokens_max += counted.new_tokens_max - asked
        self.counted_tokens += counted.prompt_tokens

    @property
    def waiting_begun(self) -> int:
        """Sequences taken by the engine, without a token."""
        return self.waiting_sequences - (self.sequences - self.begun_sequences)

    def first_token(self) -> None:
        """Note a sequence's first token; its prompt no longer waits."""
        waiting_tokens = self.waiting_prompt_tokens - self.estimated_tokens
        tokens = _share(waiting_tokens, 1, self.waiting_begun)
        self.waiting_prompt_tokens -= tokens
        self.waiting_sequences -= 1

    def end(self, *, sequences: int, without_token: int) -> None:
        """End `sequences` that had begun, `without_token` of them before their first token."""
        waiting_tokens = self.waiting_prompt_tokens - self.estimated_tokens
        prompt_tokens = self.prompt_tokens - self.estimated_tokens
        new_tokens = self.new_tokens_max - self.estimated_new_tokens
        self.waiting_prompt_tokens -= _share(waiting_tokens, without_token, self.waiting_begun)
        self.prompt_tokens -= _share(prompt_tokens, sequences, self.begun_sequences)
        self.new_tokens_max -= _share(new_tokens, sequences, self.begun_sequences)
        self.waiting_sequences -= without_token
        self.sequences -= sequences
        self.begun_sequences -= sequences


def _share(total: int, part: int, whole: int) -> int:
    """The part's share, all of it for the last part."""
    return total * part // whole if whole else 0
