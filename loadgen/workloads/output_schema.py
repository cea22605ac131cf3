"""The JSON schema of replies, from a file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.errors import FileError
from loadgen.workloads.trace_lines import read_text


def read_output_schema(path: Path) -> Mapping[str, Any]:
    """Read the schema; raises FileError, with the line, for a file that is no JSON object.

    The server decides whether it knows the schema.
    """
    try:
        schema = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise FileError(path, f"is not JSON: {error.msg}", line=error.lineno) from error
    except RecursionError as error:
        raise FileError(path, "is nested too deep") from error
    if not isinstance(schema, dict):
        raise FileError(path, "expected a JSON object, a schema", line=1)
    return schema
