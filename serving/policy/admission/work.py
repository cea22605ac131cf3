"""A request as admission sees it, before it runs."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from emulator.errors import ConfigError

CHARACTERS_PER_TOKEN: Final = 4
"""Until the engine has counted ("~4 characters in English",
https://platform.openai.com/tokenizer)."""

UNSAID_NEW_TOKENS: Final = 1024
"""Of an answer without `max_tokens`, until the engine knows. Assumed: the whole context would keep
chats without a limit out of every budget."""

SEQUENCES_MAX: Final = 16_384
"""Of one request: vLLM refuses a larger `n` (VLLM_MAX_N_SEQUENCES)."""


class WorkClass(StrEnum):
    """The client's interest: the first token (interactive), or the whole job (batch)."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


PRIORITY: Final = {WorkClass.INTERACTIVE: 0, WorkClass.BATCH: 1}
"""vLLM's scheduler priorities: lower goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """Limits of a key; None: unlimited. Emulated minutes; tokens of prompts and answers."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "concurrent"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(name, value, "at least 1")


NO_KEY_LIMITS: Final = KeyLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The owner of a request: a key's name, never the key; `anonymous` without keys."""

    name: str = "anonymous"
    work_class: WorkClass = WorkClass.INTERACTIVE
    limits: KeyLimits = NO_KEY_LIMITS

    @property
    def is_limited(self) -> bool:
        """Whether its key has any limit."""
        return self.limits is not NO_KEY_LIMITS and self.limits != NO_KEY_LIMITS

    def class_of(self, said: WorkClass | None) -> WorkClass:
        """The class of a request that asks for `said`; a batch key has no other."""
        return self.work_class if said is None or self.work_class is WorkClass.BATCH else said


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request at the gateway.

    Attributes:
        work_class: the client's own unless the request says another.
        sequences: its prompts times `n`.
        prompt_tokens: of all prompts; estimated until the engine has counted them.
        new_tokens_max: of all answers together.
        is_prefilled: another engine has the KV of its prompts, of which this one computes the last
            tokens alone.
    """

    client: Client
    work_class: WorkClass
    sequences: int
    prompt_tokens: int
    new_tokens_max: int
    is_prefilled: bool = False

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens to compute until each sequence has its first token."""
        return self.sequences if self.is_prefilled else self.prompt_tokens

    @classmethod
    def least(cls, client: Client, work_class: WorkClass) -> Self:
        """The smallest request: one sequence, one token in, one out."""
        return cls(
            client=client, work_class=work_class, sequences=1, prompt_tokens=1, new_tokens_max=1
        )
