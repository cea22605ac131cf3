"""Held-out loss of weights: nats a token and bits per byte, beside gzip's.

Bits per byte = nats of all tokens / ln 2 / UTF-8 bytes of the files. End-of-text tokens between
files cost nats without a byte; the very first token is not predicted.
"""

import gzip
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.training_fleet import Micro
from emulator.ultraserver.training_lockstep import TrainingResult
from serving.server.training.batch_order import Windows, whole_text
from serving.server.training.corpus import CorpusFile

_GZIP_LEVEL: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutLoss:
    """`nats` over `tokens` predicted tokens."""

    nats: float
    tokens: int
    bytes_per_token: float

    @property
    def nats_per_token(self) -> float:
        """The mean."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float:
        """Exact for the whole text; for a part, by the text's mean bytes per token."""
        return self.nats_per_token / math.log(2) / self.bytes_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class GzipSizes:
    """`gzip -9` of the held-out files: each by itself, and in one."""

    per_file_bits_per_byte: float
    concatenated_bits_per_byte: float


def gzip_sizes(files: Sequence[CorpusFile]) -> GzipSizes:
    """Compress with Python's gzip at level 9, headers included."""
    total = sum(len(file.content) for file in files)
    each = sum(len(gzip.compress(file.content, _GZIP_LEVEL)) for file in files)
    whole = len(gzip.compress(b"".join(file.content for file in files), _GZIP_LEVEL))
    return GzipSizes(
        per_file_bits_per_byte=8 * each / total, concatenated_bits_per_byte=8 * whole / total
    )


class HeldOutText:
    """Held-out `tokens` of `text_bytes`, in windows of `length` tokens."""

    def __init__(self, tokens: NDArray[np.integer], *, text_bytes: int, length: int) -> None:
        self._tokens = tokens
        self._length = length
        self._bytes_per_token = text_bytes / max(1, len(tokens) - 1)

    def sample(self, windows: int) -> Windows:
        """At most `windows` windows, spread evenly: always the same."""
        whole = whole_text(self._tokens, self._length, stride=self._length)
        count = min(windows, len(whole.tokens))
        chosen = np.arange(count) * len(whole.tokens) // count
        return Windows(tokens=whole.tokens[chosen], targets=whole.targets[chosen])

    def whole(self, *, stride: int) -> Windows:
        """The whole text; see `whole_text`."""
        return whole_text(self._tokens, self._length, stride=stride)

    def loss(
        self,
        windows: Windows,
        evaluate: Callable[[Sequence[Micro]], TrainingResult],
        *,
        chips: int,
        at_once: int,
    ) -> HeldOutLoss:
        """The loss of `windows` by `evaluate`, at most `at_once` a chip at a time.

        Summed in order, so independent of `at_once` but for rounding.
        """
        nats, tokens = [], 0
        for first in range(0, len(windows.tokens), at_once * chips):
            part = slice(first, first + at_once * chips)
            dealt = Windows(tokens=windows.tokens[part], targets=windows.targets[part]).dealt(chips)
            micro = [(each.tokens, each.targets) for each in dealt if len(each.tokens)]
            result = evaluate([micro])
            nats.append(result.loss * result.counted)
            tokens += result.counted
        return HeldOutLoss(
            nats=math.fsum(nats), tokens=tokens, bytes_per_token=self._bytes_per_token
        )
