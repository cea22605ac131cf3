"""PromQL shared by the dashboards: selectors, and rates by the emulated clock.

Prometheus's rate() is per wall second. The engine's clock may run slower
(`ultraserve_clock_dilation`), so a rate per EMULATED second is divided by the rate of
`ultraserve_emulated_seconds_total`. A ratio of two rates is the same by either clock.
"""

from typing import Final

INSTANCE: Final = 'instance=~"$instance"'
RACKS: Final = 'rack=~"$rack"'
CHIPS: Final = f'{RACKS}, chip=~"$chip"'

WINDOW: Final = "$__rate_interval"
"""At least four scrapes; Grafana widens it with the spacing of points."""


def picked(name: str, *matchers: str) -> str:
    """The series of the chosen instances that match all matchers."""
    return f"{name}{{{', '.join((INSTANCE, *matchers))}}}"


def total(selector: str, *by: str) -> str:
    """The sum by instance, and by the labels `by`."""
    return f"sum by ({', '.join(('instance', *by))}) ({selector})"


def rate(selector: str, *by: str) -> str:
    """Growth of a counter per wall second, summed by instance and the labels `by`."""
    return total(f"rate({selector}[{WINDOW}])", *by)


def over(dividend: str, divisor: str) -> str:
    """A quotient by instance; none where the divisor is 0.

    The divisor has the label `instance` alone; the dividend may have more.
    """
    return f"{dividend}\n/ on (instance) group_left ()\n({divisor} > 0)"


def or_zero(expression: str) -> str:
    """The expression, with 0 for instances where it has no value."""
    return f"{expression}\nor on (instance) {total(picked('ultraserve_info'))} * 0"


CLOCK: Final = rate(picked("ultraserve_emulated_seconds_total"))
"""Emulated seconds per wall second."""

STEPS: Final = rate(picked("ultraserve_steps_total"))
"""Steps per wall second."""


def emulated_rate(selector: str, *by: str) -> str:
    """Growth of a counter per EMULATED second, summed by instance and the labels `by`."""
    return over(rate(selector, *by), CLOCK)


def quantile(share: float, histogram: str) -> str:
    """A quantile of the observations in the window, in the histogram's unit."""
    buckets = rate(picked(f"{histogram}_bucket"), "le")
    return f"histogram_quantile({share:g}, {buckets})"


def mean(histogram: str) -> str:
    """The mean of the observations in the window."""
    return over(rate(picked(f"{histogram}_sum")), rate(picked(f"{histogram}_count")))


def counts_by_size(histogram: str) -> str:
    """Observations in each bucket, for a heat map."""
    return f"sum by (le) (increase({picked(f'{histogram}_bucket')}[{WINDOW}]))"


QUANTILES: Final = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))


def quantiles(histogram: str) -> tuple[tuple[str, str], ...]:
    """Expressions of the usual quantiles with their legends."""
    return tuple(
        (quantile(share, histogram), f"{name} {{{{instance}}}}") for share, name in QUANTILES
    )
