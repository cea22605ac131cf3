"""What a client has of a stream's choices, so that a repetition goes on where the stream broke off.

A request that is computed again, greedy or by its seed, has the same text, but its events may be
cut at other places. Of a repetition's events the client gets what it has not had. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

_TEXTS: Final = frozenset(
    {"text", "content", "reasoning", "reasoning_content", "refusal", "arguments"}
)
"""Fields whose pieces, in order, are a text; log-probabilities of a chat are a list `content`."""

_LISTS: Final = frozenset({"token_ids", "tokens", "token_logprobs", "top_logprobs", "text_offset"})
"""Fields whose lists, in order, are one list."""

_CALLS: Final = "tool_calls"
_INDEX: Final = "index"

_Place = tuple[str | int, ...]


class StreamDiverged(Exception):
    """A repetition has another text than the client has got."""


class _SentText:
    """The text of one field: `seen` of its characters came in the present attempt."""

    __slots__ = ("_pieces", "length", "seen")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.length = 0
        self.seen = 0

    def take(self, piece: str) -> str:
        """The part of `piece` that was not sent; raises StreamDiverged."""
        known = max(0, min(len(piece), self.length - self.seen))
        if known:
            self._pieces = ["".join(self._pieces)]
            if not self._pieces[0].startswith(piece[:known], self.seen):
                raise StreamDiverged
        new = piece[known:]
        if new:
            self._pieces.append(new)
            self.length += len(new)
        self.seen += len(piece)
        return new


class SentChoices:
    """The choices of one stream, as far as they were sent."""

    def __init__(self) -> None:
        self._texts: dict[_Place, _SentText] = {}
        self._items: dict[_Place, int] = {}
        self._seen_items: dict[_Place, int] = {}
        self._once: set[_Place] = set()

    def again(self) -> None:
        """A repetition begins."""
        self._seen_items = {}
        for text in self._texts.values():
            text.seen = 0

    def take(self, choices: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What of an event's choices was not sent, without choices that bring nothing.

        Raises StreamDiverged where a text is another than what was sent.
        """
        taken = []
        for choice in choices:
            new, is_news = self._fields((choice.get(_INDEX, 0),), choice)
            if is_news:
                taken.append(new)
        return taken

    def _fields(self, place: _Place, fields: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """The fields that are news, with those that never are; whether there is any news."""
        new: dict[str, Any] = {}
        is_news = False
        for name, value in fields.items():
            if name == _INDEX or value is None:
                new[name] = value
                continue
            rest, brings = self._value((*place, name), name, value)
            is_news |= brings
            if brings or name in _TEXTS:
                new[name] = rest
        return new, is_news

    def _value(self, place: _Place, name: str, value: Any) -> tuple[Any, bool]:
        if isinstance(value, str) and name in _TEXTS:
            text = self._texts.setdefault(place, _SentText()).take(value)
            return text, bool(text)
        if isinstance(value, list) and (name in _LISTS or name in _TEXTS):
            items = self._list(place, value)
            return items, bool(items)
        if isinstance(value, list) and name == _CALLS:
            calls = [self._fields((*place, each.get(_INDEX, 0)), each) for each in value]
            news = [call for call, brings in calls if brings]
            return news, bool(news)
        if isinstance(value, dict):
            return self._fields(place, value)
        is_first = place not in self._once
        self._once.add(place)
        return value, is_first

    def _list(self, place: _Place, items: list[Any]) -> list[Any]:
        sent, seen = self._items.get(place, 0), self._seen_items.get(place, 0)
        new = items[max(0, sent - seen) :]
        self._items[place] = sent + len(new)
        self._seen_items[place] = seen + len(items)
        return new
