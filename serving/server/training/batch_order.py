"""The sequences of a step: a function of the seed and the step alone.

A pass over the corpus cuts it into windows of one length, from its own offset, in shuffled order. A
step's sequences are dealt to micro-batches and chips in order: the same on any number of chips.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError

I32 = NDArray[np.int32]
IGNORED = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """Sequences: `tokens` and the next-token `targets`, both int32[sequences, length]."""

    tokens: I32
    targets: I32

    def dealt(self, parts: int) -> "list[Windows]":
        """`parts` runs of sequences, the first ones longer by one if need be."""
        return [
            Windows(tokens=tokens, targets=targets)
            for tokens, targets in zip(
                np.array_split(self.tokens, parts),
                np.array_split(self.targets, parts),
                strict=True,
            )
        ]


class BatchOrder:
    """Batches of `sequences` windows of `length` tokens from `tokens`, shuffled by `seed`. Raises
    ConfigError for a corpus shorter than a batch.
    """

    def __init__(
        self, tokens: NDArray[np.integer], *, sequences: int, length: int, seed: int
    ) -> None:
        self._tokens = tokens
        self._sequences = sequences
        self._length = length
        self._seed = seed
        # Every pass has equally many windows, whatever its offset.
        self.windows = (len(tokens) - length) // length
        if self.windows < sequences:
            raise ConfigError(
                "batch_tokens",
                sequences * length,
                f"at most the corpus's {max(0, self.windows) * length} tokens",
            )
        self._pass = -1
        self._starts = np.zeros(0, np.int64)  # of the windows of that pass, in order

    def batch(self, step: int) -> Windows:
        """The sequences of step `step`, counted from 0."""
        index = step * self._sequences + np.arange(self._sequences)
        starts = np.concatenate(
            [
                self._starts_of(int(number))[index[index // self.windows == number] % self.windows]
                for number in np.unique(index // self.windows)
            ]
        )
        return windows_at(self._tokens, starts, self._length)

    def _starts_of(self, number: int) -> NDArray[np.int64]:
        """Of pass `number`'s windows, in order."""
        if number != self._pass:
            chance = np.random.Generator(np.random.PCG64([self._seed, number]))
            offset = int(chance.integers(self._length))
            self._pass = number
            self._starts = chance.permutation(self.windows) * self._length + offset
        return self._starts


def windows_at(tokens: NDArray[np.integer], starts: NDArray[np.int64], length: int) -> Windows:
    """The windows of `length` tokens from `starts` on; each has a token after its last."""
    index = starts[:, None] + np.arange(length + 1)  # [windows, length + 1]
    taken = np.asarray(tokens[index], dtype=np.int32)
    return Windows(
        tokens=np.ascontiguousarray(taken[:, :-1]), targets=np.ascontiguousarray(taken[:, 1:])
    )


def whole_text(tokens: NDArray[np.integer], length: int, *, stride: int) -> Windows:
    """Windows that have every token but the first as a target exactly once, in order.

    A window begins `stride` tokens after the one before and ignores its targets: with a stride
    below the length, a token has at least length - stride tokens before it. Padding is ignored.
    """
    assert 0 < stride <= length, (stride, length)
    count = max(1, -(-(len(tokens) - 1 - length) // stride) + 1)
    starts = np.arange(count) * stride
    needed = int(starts[-1]) + length + 1
    padded = np.zeros(max(needed, len(tokens)), np.int32)
    padded[: len(tokens)] = tokens
    windows = windows_at(padded, starts, length)
    position = starts[:, None] + np.arange(1, length + 1)  # [windows, length], of the targets
    asked = position < len(tokens)
    asked[1:, : length - stride] = False
    return Windows(tokens=windows.tokens, targets=np.where(asked, windows.targets, IGNORED))
