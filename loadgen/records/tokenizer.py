"""The tokenizer protocol: implemented by a server's endpoint and by a local file."""

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Splits texts as the model's own tokenizer does.

    `words` names the counter, for reports. A server without an answer is a ServerError.
    """

    @property
    def words(self) -> str:
        """Whose count it is, as a part of a sentence."""
        ...

    async def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Split each text into token ids, with no special token added."""
        ...

    async def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Join each list of token ids; raises LoadError if it cannot."""
        ...

    async def prompt_tokens(self, text: str) -> int:
        """Count the tokens of `text` as a completion's prompt, special tokens (BOS) included."""
        ...

    async def chat_tokens(self, messages: Sequence[tuple[str, str]]) -> int:
        """Count a chat of (role, content), its template and generation prompt included."""
        ...
