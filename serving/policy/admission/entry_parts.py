"""How an entry changes as its sequences begin, get their first tokens and end. Pure arithmetic.

A request may have many sequences (several prompts, `n`). Those that have not begun have equal
shares of what was estimated for all; those that have, of what the engine counted.
"""

from dataclasses import dataclass

from serving.policy.admission.entry import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the engine says of sequences that begin, together: exact."""

    sequences: int
    prompt_tokens: int
    new_tokens_max: int


def begin(entry: Entry, counted: Counted) -> None:
    """Put the engine's figures in place of the estimate's share.

    More sequences than were foreseen are added.
    """
    foreseen = min(counted.sequences, entry.sequences - entry.begun_sequences)
    left = entry.sequences - entry.begun_sequences
    estimated = _share(entry.estimated_tokens, foreseen, left)
    asked = _share(entry.estimated_new_tokens, foreseen, left)
    more = counted.sequences - foreseen
    entry.estimated_tokens -= estimated
    entry.estimated_new_tokens -= asked
    entry.begun_sequences += counted.sequences
    entry.sequences += more
    entry.waiting_sequences += more
    entry.prompt_tokens += counted.prompt_tokens - estimated
    entry.waiting_tokens += counted.prompt_tokens - estimated
    entry.new_tokens_max += counted.new_tokens_max - asked
    entry.counted_tokens += counted.prompt_tokens


def waiting_begun(entry: Entry) -> int:
    """Sequences that the engine has taken and that have no token."""
    return entry.waiting_sequences - (entry.sequences - entry.begun_sequences)


def first_token(entry: Entry) -> None:
    """One sequence that had begun has its first token; its prompt no longer waits."""
    waiting_tokens = entry.waiting_tokens - entry.estimated_tokens
    tokens = _share(waiting_tokens, 1, waiting_begun(entry))
    entry.waiting_tokens -= tokens
    entry.waiting_sequences -= 1


def end(entry: Entry, *, sequences: int, without_token: int) -> None:
    """`sequences` that had begun are over, `without_token` of them before their first token."""
    waiting_tokens = entry.waiting_tokens - entry.estimated_tokens
    prompt_tokens = entry.prompt_tokens - entry.estimated_tokens
    new_tokens = entry.new_tokens_max - entry.estimated_new_tokens
    entry.waiting_tokens -= _share(waiting_tokens, without_token, waiting_begun(entry))
    entry.prompt_tokens -= _share(prompt_tokens, sequences, entry.begun_sequences)
    entry.new_tokens_max -= _share(new_tokens, sequences, entry.begun_sequences)
    entry.waiting_sequences -= without_token
    entry.sequences -= sequences
    entry.begun_sequences -= sequences


def _share(total: int, part: int, whole: int) -> int:
    """The part's share, all of it for the last part."""
    return total * part // whole if whole else 0
