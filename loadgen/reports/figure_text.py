"""Numbers as people read them: as many digits as tell something, thousands set apart."""

from collections.abc import Callable

from loadgen.records.estimate import Estimate
from loadgen.reports.document import NOTHING


def number(value: float | None, unknown: str = NOTHING) -> str:
    """About four figures: `0.00421`, `1.234`, `12.34`, `123.4`, `1,234`; whole numbers whole."""
    if value is None:
        return unknown
    size = abs(value)
    if size >= 999.95 or value == round(value):
        return f"{value:,.0f}"
    if size < 0.01:
        return f"{value:.3g}"
    return f"{value:.{3 if size < 9.9995 else 2 if size < 99.995 else 1}f}"


def interval(estimate: Estimate | None) -> str:
    """The 95 % interval, `12.3 .. 14.1`; `>= 12.3` where nothing bounds it above; `-` for none."""
    return _between(estimate, number)


def share_interval(estimate: Estimate | None) -> str:
    """The 95 % interval of a share, in per cent."""
    return _between(estimate, percent)


def _between(estimate: Estimate | None, words: Callable[[float], str]) -> str:
    low, high = (None, None) if estimate is None else (estimate.low, estimate.high)
    if low is not None and high is not None:
        return f"{words(low)} .. {words(high)}"
    if low is not None:
        return f">= {words(low)}"
    return NOTHING if high is None else f"<= {words(high)}"


def value_of(estimate: Estimate | None) -> str:
    """The figure itself."""
    return number(None if estimate is None else estimate.value)


def percentile_name(percentile: float) -> str:
    """`p50`, `p99.9`."""
    return f"p{percentile:g}"


def percent(share: float) -> str:
    """A share as per cent: `12.3 %`, but never `100.0 %` for less than all."""
    if share < 1 and 100 * share >= 99.95:
        return f"{int(share * 100_000) / 1000:g} %"
    return f"{100 * share:.1f} %"
