"""Measured lines that no steady state of the recorded configuration gives.

They stay in every score. What is behind them is in no column: limits of a launch script, an engine
that compiles at its first requests, a slow start.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from serving.analysis.validate.usable_rows import UsableRow
from serving.analysis.validate.validation import Validation

USERS_LEAST: Final = 0.75
USERS_MOST: Final = 1.05
"""Of Little's law: requests per second times their mean time, over the users. A run of ten rounds
has less than 1, since users of the last one end at different times.
"""
WAITS: Final = 4.0
"""A median TTFT of so many predicted ones, though the prompts' engines are idle most of the time.
"""
IDLE_SHARE: Final = 0.5
STALLS: Final = 10.0
"""A p99 of TTFT of so many medians and of so many predicted ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A line of a file, in words why it is one."""

    file: str
    line: int
    hardware: str
    words: str


def outliers(validation: Validation) -> tuple[Outlier, ...]:
    """In the rows' order, each line once for each reason."""
    return tuple(
        Outlier(
            file=row.measured.file,
            line=row.measured.line,
            hardware=row.measured.configuration.hardware,
            words=words,
        )
        for place, row in enumerate(validation.rows)
        for words in _reasons(validation, place, row)
    )


def _reasons(validation: Validation, place: int, row: UsableRow) -> Iterator[str]:
    measured, deployment = row.measured.results, row.load.deployment
    rate = _requests_per_s(row)
    if rate is not None and measured.mean_ttft_s is not None and measured.tpot_s is not None:
        time_s = measured.mean_ttft_s + measured.tpot_s * (deployment.output_tokens - 1)
        share = rate * time_s / row.measured.users
        if not USERS_LEAST <= share <= USERS_MOST:
            yield f"Little's law: its rate and times are those of {share:.2f} times its users"
    ttft_s, predicted_s = measured.ttft_s, validation.blind(place, "ttft")
    if ttft_s is None or predicted_s is None:
        return
    if rate is not None and ttft_s > WAITS * predicted_s:
        busy = rate * float(validation.prompt_s[place])
        if busy < IDLE_SHARE:
            yield (
                f"median TTFT {ttft_s:.2f} s, simulated {predicted_s:.2f} s: at its own rate "
                f"prompts take {busy:.0%} of their engines' time"
            )
    p99_s, predicted_p99_s = measured.p99_ttft_s, validation.blind(place, "p99_ttft")
    if p99_s is None or predicted_p99_s is None:
        return
    if p99_s > STALLS * max(ttft_s, predicted_p99_s):
        yield (
            f"p99 TTFT {p99_s:.2f} s, simulated {predicted_p99_s:.2f} s, at a median of "
            f"{ttft_s:.2f} s: a stall"
        )


def _requests_per_s(row: UsableRow) -> float | None:
    deployment, rate = row.load.deployment, row.measured.results.tokens_per_s_per_chip
    if rate is None:
        return None
    return rate * deployment.chips / (deployment.prompt_tokens + deployment.output_tokens)
