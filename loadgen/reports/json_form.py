"""A report as JSON, for programs."""

import json

from loadgen.reports.document import Report


def to_json(report: Report) -> str:
    """Return the report as JSON text; what is not known is null, and no number is NaN."""
    return json.dumps(report.fields(), indent=2, allow_nan=False) + "\n"
