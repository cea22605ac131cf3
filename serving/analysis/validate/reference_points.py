"""Published results of other kinds than whole serving runs, with predictions beside them.

No fit of rows has seen them, or their models. Two constants are read off points of their own kind:
the exchange's off DeepEP's and other kernels, the busiest rank's excess off SGLang's pair with and
without EPLB. GPU points of serving come from optional files.
"""

import csv
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from emulator.ultraserver.training_check import training_checks
from serving.analysis.validate.expert_parallel_rates import (
    DEEPEP_BYTES,
    NODE_POINTS,
    deepep_us,
    node_rates,
)
from serving.analysis.validate.launch_points import TOKENS_PER_MW_POINTS, tokens_per_mw
from serving.analysis.validate.measured_row import ExcludedRow
from serving.analysis.validate.trainium_points import TRAINIUM_POINTS, trainium_ns

POINTS_FILE: Final = "reference_points.csv"
DEEPEP_FILE: Final = "deepep_low_latency.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One published number and its prediction, in `unit`."""

    name: str
    unit: str
    measured: float
    predicted: float
    conditions: str
    source: str

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted / self.measured - 1


def references(folder: Path) -> list[Reference]:
    """Every point with a known measurement, from the files in `folder` and from code."""
    return [
        *_deepep(folder / DEEPEP_FILE),
        *_published(folder / POINTS_FILE),
        *_trainium(),
        *_trainings(),
    ]


def reference_data(folder: Path) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [asdict(each) | {"error": each.error} for each in references(folder)]


def excluded_points(folder: Path) -> tuple[ExcludedRow, ...]:
    """Lines of the published points' file that no prediction is for."""
    known = {point.key for point in (*NODE_POINTS, *TOKENS_PER_MW_POINTS)}
    return tuple(
        ExcludedRow(
            file=POINTS_FILE,
            line=line,
            hardware=(row.get("hardware") or "").lower(),
            reason=f"id={row.get('id')}: expected one of {', '.join(sorted(known))}",
        )
        for line, row in enumerate(_rows(folder / POINTS_FILE), start=2)
        if row.get("id") not in known
    )


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8-sig") as lines:
        return list(csv.DictReader(lines))


def _deepep(path: Path) -> list[Reference]:
    return [
        Reference(
            name=f"DeepEP low latency, EP{row['ep']} {what}",
            unit="us",
            measured=float(row[f"{what}_us"]),
            predicted=deepep_us(int(row["ep"]), what),
            conditions="128 tokens a rank, top 8 of 7,168",
            source="github.com/deepseek-ai/DeepEP, README",
        )
        for row in _rows(path)
        for what in DEEPEP_BYTES
    ]


def _published(path: Path) -> list[Reference]:
    """Points of the file that NODE_POINTS and TOKENS_PER_MW_POINTS have by id."""
    rows = {row["id"]: row for row in _rows(path)}
    nodes = [point for point in NODE_POINTS if point.key in rows]
    rates = node_rates() if nodes else {}
    found = []
    for point in nodes:
        row = rows[point.key]
        per_node = row["unit"] == "tok/s/node" or row["metric"].endswith("/node")
        found.append(
            Reference(
                name=point.name,
                unit="tokens/s per GPU",
                measured=float(row["value"]) / (8 if per_node else 1),
                predicted=rates[point.key],
                conditions=point.conditions,
                source=row["source"],
            )
        )
    return found + [
        Reference(
            name=launch.name,
            unit="tokens/s per MW",
            measured=float(rows[launch.key]["value"]),
            predicted=tokens_per_mw(launch),
            conditions=launch.conditions,
            source=rows[launch.key]["source"],
        )
        for launch in TOKENS_PER_MW_POINTS
        if launch.key in rows
    ]


def _trainium() -> list[Reference]:
    return [
        Reference(
            name=point.name,
            unit="ms",
            measured=point.measured_ms,
            predicted=trainium_ns(point) / 1e6,
            conditions=point.conditions,
            source=point.source,
        )
        for point in TRAINIUM_POINTS
    ]


def _trainings() -> list[Reference]:
    """Training runs, under the fit to serving."""
    return [
        Reference(
            name=check.published.name,
            unit=check.published.measured.unit,
            measured=check.published.measured.value,
            predicted=check.predicted,
            conditions=check.published.conditions,
            source="; ".join(
                (
                    check.published.measured.source,
                    f"left out or assumed: {check.published.differs}",
                    *filter(None, (check.published.reason,)),
                )
            ),
        )
        for check in training_checks()
    ]
