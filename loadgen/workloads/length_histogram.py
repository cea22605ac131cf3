"""Lengths from a histogram file, counted in a user's own traffic.

A CSV of a length and its weight, with or without a header. A length is a whole number, or FROM-TO
with equally likely numbers. Weights are from 0 on and need not add up to 1.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadgen.errors import FileError
from loadgen.records.arrays import Float64s, Int64s
from loadgen.records.plain_number import plain_number
from loadgen.workloads.trace_lines import csv_fields, read_lines, read_tokens

_RANGE = re.compile(r"([^-]*)-([^-]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthHistogram:
    """Bins from `least` to `most`, inclusive, each with the weight of all its lengths together.

    Raises ValueError for bins of unequal number, or without weight.
    """

    words: str
    least: tuple[int, ...]
    most: tuple[int, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.least) == len(self.most) == len(self.weights):
            raise ValueError("a bin has two ends and a weight")
        if not 0.0 < math.fsum(self.weights) < math.inf or min(self.weights) < 0.0:
            raise ValueError("weights are from 0 on, and not all 0")

    def at(self, uniforms: Float64s) -> Int64s:
        """Lengths at numbers in [0, 1), float64[n] -> int64[n]."""
        least, most = np.array(self.least), np.array(self.most)  # [bins]
        weights = np.array(self.weights)
        ends = np.cumsum(weights / weights.sum())  # [bins], the last is 1
        # Rounding may leave the last end below a number near 1, or put one on an empty bin's end.
        last = int(np.flatnonzero(weights)[-1])
        bins = np.minimum(np.searchsorted(ends, uniforms, side="right"), last)  # [n]
        share = weights[bins] / weights.sum()
        within = (uniforms - (ends[bins] - share)) / share  # [n], in [0, 1) but for rounding
        steps = np.floor(within * (most[bins] - least[bins] + 1)).astype(np.int64)
        lengths: Int64s = np.clip(least[bins] + steps, least[bins], most[bins])
        return lengths

    def draw(self, chance: np.random.Generator, count: int) -> Int64s:
        """Draw lengths, int64[count]."""
        return self.at(chance.random(count))


def read_histogram(path: Path) -> LengthHistogram:
    """Read the file; raises FileError with the line of the first wrong row."""
    lines = read_lines(path)
    headed = bool(lines) and not any(character.isdigit() for character in lines[0])
    bins: list[tuple[int, int, float]] = []
    for number, line in enumerate(lines[headed:], start=1 + headed):
        try:
            bins.append(_bin(line))
        except ValueError as error:
            raise FileError(path, str(error), line=number) from error
    if not any(weight for _, _, weight in bins):
        raise FileError(path, "has no length with a weight above 0")
    least, most, weights = zip(*bins, strict=True)
    return LengthHistogram(words=f"histogram:{path}", least=least, most=most, weights=weights)


def _bin(line: str) -> tuple[int, int, float]:
    length, weight = csv_fields(line, 2)
    ends = _RANGE.fullmatch(length.strip())
    least, most = (ends[1], ends[2]) if ends else (length.strip(), length.strip())
    if ends and not (ends[1].strip().isdigit() and ends[2].strip().isdigit()):
        raise ValueError(
            f"the length {length.strip()[:40]!r} is neither a whole number nor FROM-TO"
        )
    first, last = read_tokens("the length", least), read_tokens("the length", most)
    if first > last:
        raise ValueError(f"the lengths {length.strip()} go down")
    try:
        return first, last, plain_number(weight.strip())
    except ValueError as error:
        raise ValueError(f"the weight {error}") from error
