"""The report of laws fitted to kernels: errors by what was left out, prices, constants."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from reporting.document import Column, Table, table_of
from reporting.plain_text import table_lines
from serving.analysis.validate.kernels.exchange_kernels import (
    exchange_data,
    exchange_table,
    excluded_exchange_lines,
)
from serving.analysis.validate.kernels.kernel_scores import (
    ALL,
    LEFT_OUT,
    WITH_EXCLUDED,
    FamilyScores,
    KernelScore,
)
from serving.analysis.validate.kernels.kernel_validation import KernelValidation

_POOLED: Final = (ALL, WITH_EXCLUDED)


def report_lines(found: KernelValidation) -> Iterator[str]:
    """Errors with machines left out against the bars, prices, other levels, exchanges, what was
    excluded, constants.
    """
    scores, exchanges = found.families, found.exchanges
    yield "Median error of kernels of a machine that was left out of the fit"
    yield from table_lines(_unseen_table(scores, "machine", bars=True))
    yield ""
    yield "The price of a machine without measurements: the median error, known and left out"
    yield from table_lines(_price_table(scores))
    for level in LEFT_OUT[1:]:
        yield ""
        yield f"Median error with a {level} left out"
        yield from table_lines(_unseen_table(scores, level))
    if exchanges.scores:
        yield ""
        yield "DeepEP's kernels by the calibration that ships"
        yield from table_lines(exchange_table(exchanges.scores))
    yield ""
    yield from _excluded_lines(scores)
    for name, excluded in found.unknown.items():
        for reason, count in excluded.items():
            yield f"excluded from {name}, of which none is left: {count:,}, {reason}"
    yield from excluded_exchange_lines(exchanges.excluded)
    yield ""
    yield "Constants of a machine and stack that were not fitted"
    yield from table_lines(_constant_table(scores))


def as_data(found: KernelValidation) -> dict[str, Any]:
    """All of it for JSON."""

    def plain(scores: dict[str, KernelScore]) -> dict[str, Any]:
        return {name: asdict(score) for name, score in scores.items()}

    families = [
        {
            "family": each.family.name,
            "bar": each.family.bar,
            "known": plain(each.known),
            "left_out": {level: plain(unseen) for level, unseen in each.unseen.items()},
            "excluded": each.excluded,
            "excluded_lines": list(each.excluded_lines),
            "excluded_score": None if each.excluded_score is None else asdict(each.excluded_score),
            "constants": each.fitted.as_data(),
        }
        for each in found.families
    ]
    return {
        "families": families,
        "unknown": found.unknown,
        "exchanges": exchange_data(found.exchanges),
    }


def _unseen_table(scores: Sequence[FamilyScores], level: str, *, bars: bool = False) -> Table:
    found = [each for each in scores if each.unseen[level]]
    values = sorted({value for each in found for value in each.unseen[level]} - {*_POOLED})

    def median(value: str) -> Callable[[FamilyScores], object]:
        def of(each: FamilyScores) -> object:
            score = each.unseen[level].get(value)
            return None if score is None else score.median

        return of

    columns: list[Column[FamilyScores]] = [
        Column("family", lambda each: each.family.name, align="left"),
        Column("kernels", lambda each: each.unseen[level][ALL].kernels, ","),
        *(Column(value, median(value), ".1%") for value in (*values, *_POOLED)),
        Column("90th percentile", lambda each: each.unseen[level][ALL].p90, ".0%"),
    ]
    if bars:
        columns.append(Column("bar", lambda each: each.family.bar, ".0%"))
        columns.append(Column("", _verdict, align="left"))
    return table_of(columns, found)


def _verdict(each: FamilyScores) -> str:
    over = [
        machine
        for machine, score in each.unseen["machine"].items()
        if machine not in _POOLED and score.median > each.family.bar
    ]
    met = each.unseen["machine"][ALL].median <= each.family.bar
    return ("met" if met else "missed") + (f"; over it: {', '.join(over)}" if over else "")


def _price_table(scores: Sequence[FamilyScores]) -> Table:
    rows = [
        (each.family.name, machine, each.known[machine], unseen)
        for each in scores
        for machine, unseen in each.unseen["machine"].items()
        if machine in each.known
    ]
    columns: list[Column[Any]] = [
        Column("family", lambda row: row[0], align="left"),
        Column("machine", lambda row: row[1], align="left"),
        Column("kernels", lambda row: row[2].kernels, ","),
        Column("known", lambda row: row[2].median, ".1%"),
        Column("left out", lambda row: row[3].median, ".1%"),
        Column("price", lambda row: 100 * (row[3].median - row[2].median), "+.1f", unit="points"),
        Column("bias left out", lambda row: row[3].bias, "+.0%"),
    ]
    return table_of(columns, rows)


def _excluded_lines(scores: Sequence[FamilyScores]) -> Iterator[str]:
    for each in scores:
        for reason, count in each.excluded.items():
            yield f"excluded from {each.family.name}: {count:,}, {reason}"
        if each.excluded_score is not None:
            yield (
                f"the law's median error on what was excluded from {each.family.name}: "
                f"{each.excluded_score.median:.1%}"
            )
        if each.excluded_lines:
            yield f"  single ones: {', '.join(each.excluded_lines)}"


def _constant_table(scores: Sequence[FamilyScores]) -> Table:
    rows = [(each, prior) for each in scores for prior in each.fitted.priors]
    columns: list[Column[Any]] = [
        Column("family", lambda row: row[0].family.name, align="left"),
        Column("constant", lambda row: row[1].name, align="left"),
        Column("base", lambda row: row[0].fitted.base(row[1].name), ",.4g"),
        Column("unit", lambda row: row[1].unit, align="left"),
        Column("own to each", lambda row: ", ".join(row[1].levels), align="left"),
    ]
    return table_of(columns, rows)
