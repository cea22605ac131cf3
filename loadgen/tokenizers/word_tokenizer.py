"""Counts words instead of tokens, for servers whose tokenizer is unavailable."""

from collections.abc import Sequence

from loadgen.errors import LoadError


class WordTokenizer:
    """A word is a token; without template and special tokens.

    The server counts otherwise, usually more; reports mention it. Ids number words in the order of
    first use and mean nothing to a server.
    """

    words = "words, each counted as a token: the server's count differs"

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._words: list[str] = []

    async def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Number the words of each text."""
        return [tuple(self._number(word) for word in text.split()) for text in texts]

    async def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Join the words; raises LoadError for an unknown number."""
        try:
            return [" ".join(self._words[number] for number in each) for each in ids]
        except IndexError as error:
            raise LoadError("a token id that stands for no word seen so far") from error

    async def prompt_tokens(self, text: str) -> int:
        """Count the words of `text`."""
        return len(text.split())

    async def chat_tokens(self, messages: Sequence[tuple[str, str]]) -> int:
        """Count the words of all contents."""
        return sum(len(content.split()) for _, content in messages)

    def _number(self, word: str) -> int:
        number = self._numbers.get(word)
        if number is None:
            number = self._numbers[word] = len(self._words)
            self._words.append(word)
        return number
