"""Published results of other kinds than whole serving runs, with predictions beside them.

None of them was fitted.
"""

from pathlib import Path
from typing import Any


def reference_data(folder: Path) -> list[dict[str, Any]]:
    return []


def reference_table(references: list[dict[str, Any]]) -> list[list[str]]:
    return []
