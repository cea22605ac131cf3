"""Signed errors of predictions; their mean, median and 90th percentile."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from reporting.document import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """One prediction of one metric of one row; `covered`: its interval holds what was measured."""

    file: str
    line: int
    hardware: str
    speculative: bool
    measured: float
    predicted: float
    covered: bool | None = None

    @property
    def signed(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted / self.measured - 1


def summary(errors: Iterable[RowError]) -> dict[str, Any]:
    """Absolute errors over measured values, of all and by hardware; None without rows."""
    kept = list(errors)
    machines = sorted({each.hardware for each in kept})
    return {
        **_with_and_without_drafts(kept),
        "by_hardware": {
            machine: _with_and_without_drafts([each for each in kept if each.hardware == machine])
            for machine in machines
        },
    }


def _with_and_without_drafts(errors: list[RowError]) -> dict[str, Any]:
    return {
        **figures(errors),
        "plain": figures([each for each in errors if not each.speculative]),
        "mtp": figures([each for each in errors if each.speculative]),
    }


def figures(errors: list[RowError]) -> dict[str, float | int | None]:
    """`covered`: the share of rows whose interval holds what was measured."""
    if not errors:
        nothing = dict.fromkeys(("mape", "median_ape", "p90_ape", "bias", "covered"))
        return {**nothing, "rows": 0}
    signed = np.array([each.signed for each in errors])
    covered = [each.covered for each in errors if each.covered is not None]
    return {
        "mape": float(np.abs(signed).mean()),
        "median_ape": float(np.median(np.abs(signed))),
        "p90_ape": float(np.percentile(np.abs(signed), 90)),
        "bias": float(np.median(signed)),
        "covered": float(np.mean(covered)) if covered else None,
        "rows": len(errors),
    }


ERROR_COLUMNS: Final[tuple[Column[dict[str, Any]], ...]] = (
    Column("rows", lambda row: row["rows"], "d"),
    Column("mean", lambda row: row["mape"], ".1%"),
    Column("median", lambda row: row["median_ape"], ".1%"),
    Column("p90", lambda row: row["p90_ape"], ".1%"),
    Column("bias", lambda row: row["bias"], "+.1%"),
    Column("in 80 % interval", lambda row: row["covered"], ".0%"),
)
"""Of `figures`."""
