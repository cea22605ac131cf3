"""The exact day beside its walk, as a section of the day's report and as plain data."""

from dataclasses import asdict
from typing import Any, Final

from reporting.document import Column, Table, table_of
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.day.held_day import HeldDay

_ROWS: Final = (
    ("SLO kept", "both", 1e-2, "%"),
    ("TTFT kept", "ttft", 1e-2, "%"),
    ("TPOT kept", "tpot", 1e-2, "%"),
    ("worst 5 min", "worst", 1e-2, "%"),
    ("TTFT p99", "ttft_p99_s", 1e-3, "ms"),
    ("TPOT p99", "tpot_p99_s", 1e-3, "ms"),
    ("hand-overs", "handovers", 1.0, ""),
    ("moved requests", "moved_requests", 1.0, ""),
    ("energy of the chips", "joules", 1e6, "MJ"),
    ("trained", "trained_tokens", 1e9, "Gtok"),
    ("value per MWh", "value", 1.0, ""),
)
"""A name, the field, what its unit is in base units, and the unit."""


def exact_table(day: HeldDay) -> Table:
    """Each figure by the exact run and by the walk."""
    columns: tuple[Column[tuple[str, str, float, str]], ...] = (
        Column("of one machine", lambda row: f"{row[0]}, {row[3]}" if row[3] else row[0]),
        Column("exact", lambda row: getattr(day, row[1]).exact / row[2], ",.5g"),
        Column("walked", lambda row: getattr(day, row[1]).walked / row[2], ",.5g"),
        Column("walked less exact", lambda row: getattr(day, row[1]).relative, "+.2%"),
    )
    title = (
        f"Step by step with its hand-overs: {day.policy}, {day.length_s / HOUR_S:g} hours, "
        f"{day.requests:,} requests"
    )
    return table_of(columns, _ROWS, title=title)


def exact_data(day: HeldDay) -> dict[str, Any]:
    """The same in base units."""
    return asdict(day)
