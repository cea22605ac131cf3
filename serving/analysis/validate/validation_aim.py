"""The aim of the validation, on decode TPOT of held-out rows."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

AIM: Final = 0.12
"""Median absolute error, on every machine with enough rows."""
LEAST_ROWS: Final = 5


def misses(tpot: dict[str, Any]) -> list[dict[str, Any]]:
    """Medians of TPOT above the aim, of few rows too: pooled, by seed, with a machine left out."""
    found = list(_above("pooled", tpot["held_out"]["by_hardware"]))
    for each in tpot["seeds"]:
        found += _above(f"seed {each['seed']}", each["by_hardware"])
    for machine, each in tpot["leave_one_machine_out"].items():
        found += _above("machine left out", {machine: each})
    return found


def _above(where: str, by_hardware: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for machine, each in by_hardware.items():
        median = each["median_ape"]
        if median is not None and median > AIM:
            rows = each["rows"]
            yield {"where": where, "hardware": machine, "median_ape": median, "rows": rows}


def aim_lines(tpot: dict[str, Any], fresh: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Whether the aim is met, and medians above it; `fresh`: by machine, under FRESH_SEEDS."""
    found = misses(tpot)
    pooled = [each for each in found if each["where"] == "pooled" and each["rows"] >= LEAST_ROWS]
    met = "is not met" if pooled else "is met"
    yield (
        f"The aim, held-out TPOT within {100 * AIM:.0f} % at the median on machines with "
        f"{LEAST_ROWS} rows or more, {met} over all seeds together."
    )
    unlucky = [machine for machine, each in fresh.items() if each["pooled"] > AIM]
    if unlucky:
        medians = ", ".join(f"{each} ({100 * fresh[each]['pooled']:.1f} %)" for each in unlucky)
        yield f"Under seeds that were not looked at before it is not met on {medians}."
    for each in found:
        yield (
            f"above it: {each['where']}, {each['hardware']}: {100 * each['median_ape']:.1f} % of "
            f"{each['rows']} rows"
        )
    if found:
        yield (
            "why: halves with few rows of a machine leave its factors near their priors; one "
            "acceptance stands for all speculation; large batches with attention DP are predicted "
            "too fast; a machine that is left out has multipliers of 1"
        )
