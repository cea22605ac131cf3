"""PromQL that the dashboards share: what is selected, and rates by the emulated clock.

Prometheus's rate() counts per second of the wall. The engine's clock is another one (it may run
slower, `ultraserve_clock_dilation` says how much), so a rate per EMULATED second is divided by the
rate of `ultraserve_emulated_seconds_total`. A ratio of two rates is the same by either clock.
"""

from typing import Final

INSTANCE: Final = 'instance=~"$instance"'
RACKS: Final = 'rack=~"$rack"'
CHIPS: Final = f'{RACKS}, chip=~"$chip"'

WINDOW: Final = "$__rate_interval"
"""At least four scrapes; Grafana makes it longer where a point stands for more time."""


def picked(name: str, *matchers: str) -> str:
    """The series of the chosen instances that fit all matchers."""
    return f"{name}{{{', '.join((INSTANCE, *matchers))}}}"


def total(selector: str, *by: str) -> str:
    """The sum by instance, and by the labels `by`."""
    return f"sum by ({', '.join(('instance', *by))}) ({selector})"


def rate(selector: str, *by: str) -> str:
    """Growth of a counter per second of the wall, summed by instance and the labels `by`."""
    return total(f"rate({selector}[{WINDOW}])", *by)


def over(dividend: str, divisor: str) -> str:
    """A quotient by instance; there is none where the divisor is 0.

    The dividend may have more labels than the divisor, which has `instance` alone.
    """
    return f"{dividend}\n/ on (instance) group_left ()\n({divisor} > 0)"


def or_zero(expression: str) -> str:
    """0 for each instance for which the expression, one by instance, has no value."""
    return f"{expression}\nor {total(picked('ultraserve_info'))} * 0"


CLOCK: Final = rate(picked("ultraserve_emulated_seconds_total"))
"""Emulated seconds per second of the wall."""

STEPS: Final = rate(picked("ultraserve_steps_total"))
"""Steps per second of the wall."""


def emulated_rate(selector: str, *by: str) -> str:
    """Growth of a counter per EMULATED second, summed by instance and the labels `by`."""
    return over(rate(selector, *by), CLOCK)


def quantile(share: float, histogram: str) -> str:
    """A quantile of the observations in the window; their unit is the histogram's."""
    buckets = rate(picked(f"{histogram}_bucket"), "le")
    return f"histogram_quantile({share:g}, {buckets})"


def mean(histogram: str) -> str:
    """The mean of the observations in the window."""
    return over(rate(picked(f"{histogram}_sum")), rate(picked(f"{histogram}_count")))


def counts_by_size(histogram: str) -> str:
    """How many observations fell into each bucket, for a heat map."""
    return f"sum by (le) (increase({picked(f'{histogram}_bucket')}[{WINDOW}]))"


QUANTILES: Final = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))


def quantiles(histogram: str) -> tuple[tuple[str, str], ...]:
    """Expressions of the usual quantiles with their legends."""
    return tuple(
        (quantile(share, histogram), f"{name} {{{{instance}}}}") for share, name in QUANTILES
    )
