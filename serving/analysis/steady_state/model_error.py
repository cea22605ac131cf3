"""The error of the cost model, as ranges of what it predicts.

Fits that had not seen a machine were held against its measurements; four of five lay within these
ratios of the prediction. All machines were GPU servers: elsewhere the ranges are assumed to hold.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from emulator.specs.shipped_fits import (
    FITTED,
    TRAINING_INTERVAL,
    PredictionInterval,
    shipped_fits,
)
from reporting.document import Column
from reporting.numbers import range_words

ModelError = Mapping[str, PredictionInterval]
"""By metric; nothing of a roofline, whose times are bounds."""

USER_RATE: Final = "tokens_per_s_per_user"
TRAINING_RATE: Final = "training_tokens_per_s"
P99: Final = 99.0
RANGE: Final = "80 %"
"""The heading of ranges."""


def model_error(calibration: str) -> ModelError:
    """Of a calibration by its name: `tpot`, `ttft`, `mean_ttft`, `tokens_per_s`, a user's
    tokens/s, which are those of one over TPOT, and trained tokens/s.
    """
    if calibration != FITTED:
        return {}
    intervals = shipped_fits().intervals
    return {**intervals, USER_RATE: intervals["tpot"].inverse, TRAINING_RATE: TRAINING_INTERVAL}


def interval_of(error: ModelError, name: str, percentile: float) -> PredictionInterval | None:
    """Of a percentile of TTFT or TPOT: p99's own from 99 up, else that of the middle."""
    return error.get(f"p99_{name}" if percentile >= P99 else name)


def error_in_words(error: ModelError) -> str:
    """The error, as a report says it."""
    if not error:
        return "error of the model: a roofline's times are bounds, none is a prediction"
    tpot, ttft, rate = (error[name] for name in ("tpot", "ttft", "tokens_per_s"))
    return (
        "error of the model: of DeepSeek-R1 on GPU servers that no fit had seen, four of five rows "
        f"had {tpot.least:.2f} to {tpot.most:.2f} times the predicted TPOT, {rate.least:.2f} to "
        f"{rate.most:.2f} times the tokens/s, {ttft.least:.2f} to {ttft.most:.1f} times the "
        "TTFT; their routing was uneven, and predicted so; "
        "published rates of other models lie outside more often (ultraserve validate)"
    )


def plain_error(error: ModelError) -> dict[str, tuple[float, float]]:
    """The error for JSON: measured over predicted, the least and the most."""
    return {metric: (each.least, each.most) for metric, each in error.items()}


def error_of(plain: Mapping[str, tuple[float, float]]) -> ModelError:
    """The error of its `plain_error`."""
    return {name: PredictionInterval(least=a, most=b) for name, (a, b) in plain.items()}


def plain_ranges(
    intervals: Mapping[str, PredictionInterval | None], predicted: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """80 % ranges for JSON of those values that have an interval, by their names."""
    return {
        name: interval.around(predicted[name])
        for name, interval in intervals.items()
        if interval is not None and name in predicted
    }


def range_column(
    interval: PredictionInterval | None, value: Callable[[Any], Any], *, scale: float = 1.0
) -> list[Column[Any]]:
    """The column with the ranges of `value`; none without an interval."""
    if interval is None:
        return []
    return [
        Column(RANGE, lambda row: range_words(interval.around(value(row)), scale=scale)),
    ]


def in_range(interval: PredictionInterval | None, predicted: float, *, scale: float = 1.0) -> str:
    """` (80 %: 10.1 to 15)`, to stand behind a predicted value; nothing without an interval."""
    if interval is None:
        return ""
    return f" ({RANGE}: {range_words(interval.around(predicted), scale=scale)})"
