"""Distributions of lengths in tokens (and of turns), as typed.

    512                              always the same
    uniform:64-1024                  every whole number from 64 to 1024 alike
    lognormal:1155,1109              mean and standard deviation
    lognormal:1155,1109,2-14050      the same, with outliers moved to the nearer end
    histogram:FILE.csv               rows of a length, or of FROM-TO, and a weight

A length is the inverse of its distribution at one uniform number, so the first lengths of a seed do
not depend on how many are drawn, and a small change of a parameter changes all a little.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from loadgen.errors import OptionError
from loadgen.records.arrays import Float64s, Int64s
from loadgen.workloads.length_histogram import read_histogram
from loadgen.workloads.trace_lines import TOKENS_MAX
from loadgen.workloads.workload_spec import Lengths

FORMS: Final = "512, uniform:64-1024, lognormal:MEAN,STD[,MIN-MAX] or histogram:FILE.csv"

_SPREAD_MIN_TOKENS: Final = 1e-3  # of a deviation: less is lost in rounding to whole tokens

_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_LOGNORMAL = re.compile(r"([\d.]{1,20}),([\d.]{1,20})(?:,(\d{1,9})-(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Whole numbers from `least` to `most`, equally likely. Raises ValueError for no number."""

    least: int
    most: int

    def __post_init__(self) -> None:
        _check_ends(self.least, self.most)

    @property
    def words(self) -> str:
        """As it is written."""
        return f"{self.least}" if self.least == self.most else f"uniform:{self.least}-{self.most}"

    def at(self, uniforms: Float64s) -> Int64s:
        """Lengths at numbers in [0, 1), float64[n] -> int64[n]."""
        steps = np.floor(uniforms * (self.most - self.least + 1)).astype(np.int64)
        return np.minimum(self.least + steps, self.most)

    def draw(self, chance: np.random.Generator, count: int) -> Int64s:
        """Draw lengths, int64[count]."""
        return self.at(chance.random(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """exp of a normal variable, rounded, then moved to the nearer end if outside.

    `mean` and `deviation` are those before rounding and moving. Raises ValueError for a mean or
    deviation not above 0, and for ends out of order.
    """

    mean: float
    deviation: float
    least: int = 1
    most: int = TOKENS_MAX

    def __post_init__(self) -> None:
        if not (0.0 < self.mean <= TOKENS_MAX and 0.0 < self.deviation < math.inf):
            raise ValueError(f"mean {self.mean}, deviation {self.deviation}")
        _check_ends(self.least, self.most)

    @property
    def words(self) -> str:
        """As it is written."""
        ends = "" if (self.least, self.most) == (1, TOKENS_MAX) else f",{self.least}-{self.most}"
        return f"lognormal:{self.mean:g},{self.deviation:g}{ends}"

    def at(self, uniforms: Float64s) -> Int64s:
        """Lengths at numbers in [0, 1), float64[n] -> int64[n]."""
        # Imported here: it takes 0.2 s, and few need it.
        from scipy.special import ndtri  # type: ignore[import-untyped]  # noqa: PLC0415

        # mean m and deviation s of exp(N(mu, v)): v = ln(1 + (s/m)^2), mu = ln m - v/2
        variance = math.log(1.0 + (self.deviation / self.mean) ** 2)
        middle = math.log(self.mean) - variance / 2.0
        with np.errstate(over="ignore"):  # far out in the tail: moved to the end below
            drawn = np.exp(middle + math.sqrt(variance) * ndtri(uniforms))
        lengths: Int64s = np.clip(np.rint(drawn), self.least, self.most).astype(np.int64)
        return lengths

    def draw(self, chance: np.random.Generator, count: int) -> Int64s:
        """Draw lengths, int64[count]."""
        return self.at(chance.random(count))


def lognormal_of_median(
    *, median: float, sigma: float, least: int = 1, most: int = TOKENS_MAX
) -> Lengths:
    """exp(N(ln median, sigma)), rounded and kept within the ends; constant without a spread.

    Its mean is median * exp(sigma^2 / 2). Raises OptionError for a sigma that is not finite or
    below 0, a median outside the ends, and an unbounded spread.
    """
    if not 1 <= least <= median <= most <= TOKENS_MAX:
        expected = f"within {least:,} to {most:,}, and these in 1 to {TOKENS_MAX:,} tokens"
        raise OptionError("median", median, expected)
    if not 0.0 <= sigma < math.inf:
        raise OptionError("sigma", sigma, "a finite number from 0 on")
    try:
        mean = median * math.exp(sigma**2 / 2)
        deviation = mean * math.sqrt(math.expm1(sigma**2))
        if deviation < _SPREAD_MIN_TOKENS:
            return Uniform(least=round(median), most=round(median))
        return Lognormal(mean=mean, deviation=deviation, least=least, most=most)
    except (ValueError, OverflowError) as error:
        raise OptionError("sigma", sigma, f"less spread ({error})") from error


def parse_lengths(text: str, *, option: str = "lengths") -> Lengths:
    """Parse a distribution, see above.

    Raises OptionError naming `option` for another form, FileError for an unusable histogram.
    """
    kind, colon, rest = text.strip().partition(":")
    if colon and kind == "histogram" and rest:
        return read_histogram(Path(rest))
    try:
        if not colon:
            return _same(kind)
        if kind == "uniform":
            return _uniform(rest)
        if kind == "lognormal":
            return _lognormal(rest)
    except ValueError as error:
        raise OptionError(option, text, f"{FORMS} ({error})") from error
    raise OptionError(option, text, FORMS)


def _same(text: str) -> Uniform:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return Uniform(least=int(text), most=int(text))


def _uniform(text: str) -> Uniform:
    matched = _RANGE.fullmatch(text)
    if matched is None:
        raise ValueError(f"{text[:40]!r} is not like 64-1024")
    return Uniform(least=int(matched[1]), most=int(matched[2]))


def _lognormal(text: str) -> Lognormal:
    matched = _LOGNORMAL.fullmatch(text)
    if matched is None:
        raise ValueError(f"{text[:40]!r} is not like 1155,1109 or 1155,1109,2-14050")
    mean, deviation = float(matched[1]), float(matched[2])
    if matched[3] is None:
        return Lognormal(mean=mean, deviation=deviation)
    return Lognormal(mean=mean, deviation=deviation, least=int(matched[3]), most=int(matched[4]))


def _check_ends(least: int, most: int) -> None:
    if not 1 <= least <= most <= TOKENS_MAX:
        raise ValueError(f"{least} to {most} is not a range within 1 to {TOKENS_MAX:,}")
