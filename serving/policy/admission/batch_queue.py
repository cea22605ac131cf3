"""Queue of batch work: first come first served within a key, round robin between keys."""

from collections import OrderedDict
from collections.abc import Iterator

from serving.policy.admission.entry import Entry


class BatchQueue:
    """A queue per key; a key that had its turn goes last. Operations take constant time. Invariant:
    `len` and `tokens` match the content, and no key has an empty queue.
    """

    def __init__(self) -> None:
        self._keys: OrderedDict[str, OrderedDict[int, Entry]] = OrderedDict()
        self._arrived: OrderedDict[int, Entry] = OrderedDict()
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._arrived)

    def __iter__(self) -> Iterator[Entry]:
        """In order of arrival."""
        return iter(self._arrived.values())

    def add(self, entry: Entry) -> None:
        """Append to its key's queue."""
        self._keys.setdefault(entry.work.client.name, OrderedDict())[entry.number] = entry
        self._arrived[entry.number] = entry
        self.tokens += entry.prompt_tokens

    def heads(self) -> Iterator[Entry]:
        """The first entry of each key, in the order of turns; do not change while iterating."""
        for queue in self._keys.values():
            yield next(iter(queue.values()))

    @property
    def oldest(self) -> Entry | None:
        """The entry that has waited longest; None when empty."""
        return next(iter(self._arrived.values()), None)

    def take(self, entry: Entry) -> None:
        """Remove a head; its key goes last."""
        name = entry.work.client.name
        self.remove(entry)
        if name in self._keys:
            self._keys.move_to_end(name)

    def remove(self, entry: Entry) -> None:
        """Remove an entry from any place."""
        name = entry.work.client.name
        del self._keys[name][entry.number]
        if not self._keys[name]:
            del self._keys[name]
        del self._arrived[entry.number]
        self.tokens -= entry.prompt_tokens
