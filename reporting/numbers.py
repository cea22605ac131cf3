"""Numbers for people: significant digits, thousands set apart."""

from collections.abc import Callable
from typing import Final, Protocol

NOTHING: Final = "-"
_PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
_SHORT_UNITS: Final = {"bytes": "B", "bytes/s": "B/s", "FLOP/s": "FLOP/s", "op/s": "op/s"}
"""Units that take a prefix, and their spelling behind one."""


class Bounded(Protocol):
    """A figure with its 95 % interval, as far as there is one."""

    @property
    def value(self) -> float:
        """The figure itself."""

    @property
    def low(self) -> float | None:
        """The lower bound."""

    @property
    def high(self) -> float | None:
        """The upper bound."""


def number(value: float | None) -> str:
    """About four figures: `0.00421`, `1.234`, `12.34`, `123.4`, `1,234`; whole numbers whole."""
    if value is None:
        return NOTHING
    size = abs(value)
    if size >= 999.95 or value == round(value):
        return f"{value:,.0f}"
    if size < 0.1:
        return f"{value:.3g}"
    return f"{value:.{3 if size < 9.9995 else 2 if size < 99.995 else 1}f}"


def four_digits(value: float) -> str:
    """Whole from a thousand on, four digits below."""
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"


def range_words(bounds: tuple[float, float], *, scale: float = 1.0) -> str:
    """Three digits each, thousands in k from 10,000 on, and millions in M: `9.01 to 14.5`."""
    return " to ".join(_three_digits(bound / scale) for bound in bounds)


def _three_digits(value: float) -> str:
    for factor, suffix, least in ((1e6, "M", 999_500), (1e3, "k", 9_995)):
        if value >= least:
            return f"{float(f'{value / factor:.3g}'):,g}{suffix}"
    return f"{float(f'{value:.3g}'):,g}"


def with_prefix(value: float, unit: str) -> tuple[str, str]:
    """A value and its unit; bytes and operations in M, G or T (powers of ten): `1.25`, `TB/s`."""
    if unit in _SHORT_UNITS:
        for factor, prefix in _PREFIXES:
            if value >= factor:
                value, unit = value / factor, prefix + _SHORT_UNITS[unit]
                break
    digits = 0 if value == int(value) else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}", unit


def interval(found: Bounded | None, form: Callable[[float], str] = number) -> str:
    """The 95 % interval, `12.3 .. 14.1`; `>= 12.3` where nothing bounds it above; `-` for none."""
    low, high = (None, None) if found is None else (found.low, found.high)
    if low is not None and high is not None:
        return f"{form(low)} .. {form(high)}"
    if low is not None:
        return f">= {form(low)}"
    return NOTHING if high is None else f"<= {form(high)}"


def share_interval(found: Bounded | None) -> str:
    """The 95 % interval of a share, in per cent."""
    return interval(found, percent)


def value_of(found: Bounded | float | None) -> str:
    """The figure itself."""
    return number(found if found is None or isinstance(found, int | float) else found.value)


def percentile_name(percentile: float) -> str:
    """`p50`, `p99.9`."""
    return f"p{percentile:g}"


def percent(share: float) -> str:
    """A share as per cent: `12.3 %`, but never `100.0 %` for less than all."""
    if share < 1 and 100 * share >= 99.95:
        return f"{int(share * 100_000) / 1000:g} %"
    return f"{100 * share:.1f} %"


def signed_percent(share: float) -> str:
    """A difference as a share: `+12.3 %`, and `0.0 %` for next to nothing."""
    words = f"{100 * share:+.1f} %"
    return "0.0 %" if words in ("+0.0 %", "-0.0 %") else words
