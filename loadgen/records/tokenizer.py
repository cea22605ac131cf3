"""The tokenizer protocol, of a server's endpoint or a local file."""

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Splits texts as the model's tokenizer does.

    `words` names the counter, for reports. Raises ServerError without an answer of a server.
    """

    @property
    def words(self) -> str:
        """The counter's name, as a part of a sentence."""
        ...

    async def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Split each text into token ids, without special tokens."""
        ...

    async def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Join each list of token ids; raises LoadError if it cannot."""
        ...

    async def prompt_tokens(self, text: str) -> int:
        """Count `text` as a completion's prompt, special tokens (BOS) included."""
        ...

    async def chat_tokens(self, messages: Sequence[tuple[str, str]]) -> int:
        """Count a chat of (role, content), with template and generation prompt."""
        ...
