"""The table of results: a line per attack, as soon as it is over."""

import math
import statistics
from collections.abc import Sequence
from typing import Final

from tests.attacks.trial import Trial, failures_of, worst_ratio
from tests.attacks.verdict import MEGABYTE

_WIDTHS: Final = (26, 8, 7, 10, 9)
TITLES: Final = ("attack", "RSS MB", "p99 x", "given back", "verdict", "answers")
ANSWERS_SHOWN: Final = 5


def line(cells: Sequence[str]) -> str:
    """One line of the table; the last column has no width."""
    name, *rest = (
        cell.ljust(width) if index == 0 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells[:-1], _WIDTHS, strict=True))
    )
    return "  ".join((name, *rest, cells[-1]))


def row(trials: Sequence[Trial]) -> str:
    """One attack's row: the largest growth, and the median trial's latency."""
    shown = max(trials, key=lambda trial: (trial.measured.growth_bytes, worst_ratio(trial)))
    measured = shown.measured
    growth_bytes = max(trial.measured.growth_bytes for trial in trials)
    ratio = statistics.median_low([worst_ratio(trial) for trial in trials])
    kept = measured.kept_bytes / MEGABYTE
    back = f"{measured.given_back_s:.0f} s" if measured.given_back_s < 60 else f"-{kept:,.0f} MB"
    return line(
        (
            shown.attack.name,
            f"+{growth_bytes / MEGABYTE:,.0f}",
            "-" if math.isnan(ratio) else f"{ratio:.2f}",
            back,
            "FAILED" if failures_of(trials) else "stood",
            answers_text(shown),
        )
    )


def answers_text(trial: Trial) -> str:
    """The most frequent answers, with counts."""
    counted = trial.answers.by_status.most_common()
    text = ", ".join(f"{status} ({count:,})" for status, count in counted[:ANSWERS_SHOWN])
    return text + (" ..." if len(counted) > ANSWERS_SHOWN else "") or "none"
