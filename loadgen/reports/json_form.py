"""A report as JSON, for programs."""

import json

from loadgen.reports.document import ReportDocument


def to_json(report: ReportDocument) -> str:
    """Return the report as JSON text; what is not known is null, and no number is NaN."""
    return json.dumps(report.fields(), indent=2, allow_nan=False) + "\n"
