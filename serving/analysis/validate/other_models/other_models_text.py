"""Scores of other models than the fitted one, as text and as data."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from serving.analysis.validate.counted_rows import PASS_TOKENS_MAX
from serving.analysis.validate.other_models.other_models import OtherModels, PublishedPrediction
from serving.analysis.validate.other_models.published_load import SEQUENCES_MAX
from serving.analysis.validate.prediction_errors import ERROR_COLUMNS

_SCORES: Final[tuple[Column[dict[str, Any]], ...]] = (
    Column("other models", lambda row: row["metric"], align="left"),
    Column("kind", lambda row: row["kind"], align="left"),
    Column("model", lambda row: row["model"], align="left"),
    *ERROR_COLUMNS,
)
_EXCLUDED: Final[tuple[Column[tuple[str, int]], ...]] = (
    Column("rows", lambda row: row[1], "d"),
    Column("excluded because", lambda row: row[0], align="left"),
)
ASSUMED: Final = (
    "Other models: published figures by the fit on everything, which saw DeepSeek-R1 alone. "
    "DeepSeek-R1's own in the same tables stand apart: what they miss is the tables' way of "
    "measuring, not the model.",
    "A table's maximum rate is read as a closed loop of as many sequences as requests were sent, "
    f"HBM holds (whole requests, 0.95 of what weights leave) and {SEQUENCES_MAX:,} a rank "
    f"allow (*assumed*); passes of {PASS_TOKENS_MAX:,} prompt tokens; a run's begin and end are "
    "not counted.",
    "KV in FP8, but gpt-oss on Hopper (BF16); FP4 is of a mixture's routed experts alone, or of "
    "all of a dense model's matrices; a mixture on several GPUs has attention data parallel and "
    "whole experts, as the tables' options have it.",
    "vLLM's tables on MI300X are read as output tokens/s; sequences hold 0.7 of their output on "
    "average. Kimi-K2's pools: one step with even experts, two half batches, prompts of 16,384 "
    "tokens a GPU.",
)
"""How published rows are read."""


def report_lines(found: OtherModels) -> Iterator[str]:
    """Scores, then excluded rows by reason."""
    yield (
        f"{len(found.predictions)} published figures of other models predicted, "
        f"{len(found.excluded)} excluded; each with its source: --json"
    )
    yield from table_lines(table_of(_SCORES, found.scores()))
    yield ""
    reasons = Counter(each.reason for each in found.excluded)
    if reasons:
        yield from table_lines(table_of(_EXCLUDED, reasons.most_common()))


def as_data(found: OtherModels) -> dict[str, Any]:
    """Every row with its prediction and source, scores, excluded rows."""
    return {
        "scores": found.scores(),
        "rows": [_row_data(found, each) for each in found.predictions],
        "excluded": [asdict(each) for each in found.excluded],
        "assumptions": list(ASSUMED),
    }


def _row_data(found: OtherModels, each: PublishedPrediction) -> dict[str, Any]:
    error = each.error(found.fits)
    return {
        **asdict(each.row),
        "kind": each.kind,
        "batch": each.batch,
        "predicted": each.predicted,
        "error": error.signed,
        "in_range_80": error.covered,
    }
