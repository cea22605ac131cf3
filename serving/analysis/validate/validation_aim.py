"""The aims of the validation, on rows whose machine no fit had seen."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The largest error that is aimed at: `figure` of `metric`, over all rows or plain ones."""

    metric: str
    words: str
    rows: str
    figure: str
    most: float


AIMS: Final = (
    Aim(metric="tpot", words="TPOT, median", rows="all", figure="median_ape", most=0.12),
    Aim(metric="tpot", words="TPOT, 90th percentile", rows="all", figure="p90_ape", most=0.35),
    Aim(metric="tpot", words="plain TPOT, median", rows="plain", figure="median_ape", most=0.08),
    Aim(metric="tokens_per_s", words="tokens/s, median", rows="all", figure="median_ape", most=0.1),
    Aim(metric="ttft", words="median TTFT, median", rows="all", figure="median_ape", most=0.25),
)
MACHINE_AIM: Final = 0.15
"""Median error of TPOT, on every machine."""


def missed(found: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Aims that `scores` miss, and machines above theirs."""
    misses = []
    for aim in AIMS:
        over = found[aim.metric] if aim.rows == "all" else found[aim.metric][aim.rows]
        value = over[aim.figure]
        if value is not None and value > aim.most:
            misses.append({"aim": aim.words, "most": aim.most, "found": value})
    for machine, each in found["tpot"]["by_hardware"].items():
        if each["median_ape"] > MACHINE_AIM:
            words = f"TPOT on {machine}, median of {each['rows']} rows"
            misses.append({"aim": words, "most": MACHINE_AIM, "found": each["median_ape"]})
    return misses


def aim_lines(found: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Every missed aim in a line, or that there is none."""
    misses = missed(found)
    if not misses:
        yield "Every aim is met by rows that no fit had seen."
    for each in misses:
        yield (
            f"missed by rows that no fit had seen: {each['aim']} {100 * each['found']:.1f} %, "
            f"aimed at {100 * each['most']:.0f} %"
        )
