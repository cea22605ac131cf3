"""What the engine has, or has been promised, in running sums."""

from dataclasses import dataclass

from serving.policy.admission.entry import Entry


@dataclass(slots=True)
class Load:
    """Sums over entries; `add` and `subtract` take an entry as it is at that moment."""

    requests: int = 0
    sequences: int = 0
    prompt_tokens: int = 0
    new_tokens_max: int = 0
    waiting_sequences: int = 0
    waiting_tokens: int = 0

    def add(self, entry: Entry) -> None:
        """Count it."""
        self._count(entry, 1)

    def subtract(self, entry: Entry) -> None:
        """Take it away as it is now, which must be as it was counted."""
        self._count(entry, -1)

    def _count(self, entry: Entry, sign: int) -> None:
        self.requests += sign
        self.sequences += sign * entry.sequences
        self.prompt_tokens += sign * entry.prompt_tokens
        self.new_tokens_max += sign * entry.new_tokens_max
        self.waiting_sequences += sign * entry.waiting_sequences
        self.waiting_tokens += sign * entry.waiting_tokens
