"""Recorded conversations with their own words, in the form of the ShareGPT data sets.

A JSON list (or one JSON object a line) of {"conversations": [{"from": "human", "value": ...},
{"from": "gpt", "value": ...}, ...]}; other fields are ignored. The words are sent unchanged, so
lengths need a tokenizer, which this module must not know: it names the texts and receives counts.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from loadgen.errors import FileError
from loadgen.records.plain_number import counted
from loadgen.workloads.trace_lines import read_text

# Who speaks, by the names that the published files use.
ROLES: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
}

_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A system prompt (or empty), and at least one turn of question and reply."""

    system: str
    turns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conversations:
    """A file's content, in order; `tokens` is empty until the texts are counted."""

    items: tuple[Conversation, ...]
    notes: tuple[str, ...] = ()
    tokens: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text to count, once each."""
        found = dict.fromkeys(each.system for each in self.items)
        found |= dict.fromkeys(text for each in self.items for turn in each.turns for text in turn)
        return tuple(text for text in found if text)

    def counted(self, counts: Sequence[int]) -> Self:
        """A copy with the tokens of each of `texts`; ValueError for another number of counts."""
        return replace(self, tokens=dict(zip(self.texts, counts, strict=True)))


def read_sharegpt(path: Path, *, limit: int | None = None) -> Conversations:
    """Read the first `limit` conversations with a question and a reply (None: all).

    A conversation is kept from its first question to its first message that is out of turn or
    empty; one without a reply is left out, and counted. Raises FileError, with the entry's line,
    for another form.
    """
    items: list[Conversation] = []
    without = 0
    for number, (line, entry) in enumerate(_entries(path, read_text(path)), start=1):
        try:
            conversation = _conversation(entry)
        except ValueError as error:
            raise FileError(path, f"{_name(number, entry)}: {error}", line=line) from error
        if conversation is None:
            without += 1
        else:
            items.append(conversation)
        if limit is not None and len(items) >= limit:
            break
    if not items:
        raise FileError(path, "has no conversation of a question and a reply")
    left_out = counted(without, "entry", "entries")
    notes = (f"of {path.name} {left_out} without a question and its reply left out",)
    return Conversations(items=tuple(items), notes=notes if without else ())


def _entries(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Yield each entry and its first line, one at a time: such files are large."""
    decoder = json.JSONDecoder()
    place, line, seen = _after_space(text, 0), 1, 0
    listed = text.startswith("[", place)
    place = _after_space(text, place + listed)
    while place < len(text) and not (listed and text[place] == "]"):
        line, seen = line + text.count("\n", seen, place), place
        try:
            entry, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise FileError(path, f"is not JSON: {error.msg}", line=error.lineno) from error
        except RecursionError as error:
            raise FileError(path, "is nested too deep", line=line) from error
        yield line, entry
        place = _after_space(text, place)
        if listed and text.startswith(",", place):
            place = _after_space(text, place + 1)
        elif listed and not text.startswith("]", place):
            line += text.count("\n", seen, place)
            raise FileError(path, "expected , or ] behind an entry", line=line)


def _after_space(text: str, place: int) -> int:
    matched = _SPACE.match(text, place)
    assert matched is not None  # it matches nothing at all, too
    return matched.end()


def _name(number: int, entry: object) -> str:
    """Name an entry by `number`, from 1, and its id if any: a file may be one long line."""
    name = entry.get("id") if isinstance(entry, dict) else None
    known = isinstance(name, str | int) and str(name).isprintable()
    return f"conversation {number} ({str(name)[:40]!r})" if known else f"conversation {number}"


def _conversation(entry: object) -> Conversation | None:
    """Read an entry; None without a question and a reply. Raises ValueError for its form."""
    messages = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(messages, list):
        raise ValueError('expected an object with a list "conversations"')
    said = [_message(number, message) for number, message in enumerate(messages, start=1)]
    system = said[0][1] if said and said[0][0] == "system" else ""
    while said and said[0][0] != "user":
        said.pop(0)
    turns: list[tuple[str, str]] = []
    for (asker, question), (answerer, reply) in zip(said[::2], said[1::2], strict=False):
        in_turn = (asker, answerer) == ("user", "assistant")
        if not in_turn or not question.strip() or not reply.strip():
            break
        turns.append((question, reply))
    return (
        Conversation(system=system if system.strip() else "", turns=tuple(turns)) if turns else None
    )


def _message(number: int, message: object) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise ValueError(f"message {number} is not an object")
    speaker, words = message.get("from"), message.get("value")
    if not isinstance(speaker, str) or speaker not in ROLES:
        raise ValueError(
            f"message {number} is from {str(speaker)[:40]!r}, not of {', '.join(ROLES)}"
        )
    if not isinstance(words, str):
        raise ValueError(f"message {number} has no text as its value")
    return ROLES[speaker], words
