"""The Mooncake traces (kvcache-ai/Mooncake; Qin et al., FAST 2025, Apache-2.0).

JSON lines of timestamp in ms, input_length, output_length and hash_ids. A hash id names a block of
512 tokens together with all blocks before it, so prompts that begin with the same ids begin with
the same text. The last block holds the rest of the prompt.
"""

import json
from pathlib import Path
from typing import Any, Final

from loadgen.workloads.recording import Recording
from loadgen.workloads.trace_lines import TOKENS_MAX, TraceRow, read_lines, read_rows

BLOCK_TOKENS: Final = 512
FIELDS: Final = ("timestamp", "input_length", "output_length", "hash_ids")

_NS_PER_MS: Final = 1_000_000
_TIMESTAMP_MS_MAX: Final = 9 * 10**12  # three centuries: a slip of a unit, not a time in a trace


def read_mooncake(path: Path) -> Recording:
    """Read every row in order; raises FileError for the first that is wrong.

    A row without hash_ids has a prompt of its own.
    """
    rows = read_rows(path, read_lines(path), first_line=1, read=_row)
    return Recording.of_rows("mooncake", rows, block_tokens=BLOCK_TOKENS)


def _row(line: str) -> TraceRow:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("is not a JSON object") from error
    if not isinstance(row, dict):
        raise ValueError("is not a JSON object")
    for field in row:
        if field not in FIELDS:
            raise ValueError(f"{field[:40]!r} is not one of the fields {', '.join(FIELDS)}")
    input_tokens = _whole(row, "input_length", 1, TOKENS_MAX)
    return TraceRow(
        at_ns=_whole(row, "timestamp", 0, _TIMESTAMP_MS_MAX) * _NS_PER_MS,
        input_tokens=input_tokens,
        output_tokens=_whole(row, "output_length", 1, TOKENS_MAX),
        blocks=_blocks(row.get("hash_ids", []), input_tokens),
    )


def _whole(row: dict[str, Any], field: str, least: int, most: int) -> int:
    if field not in row:
        raise ValueError(f"{field} is missing")
    number = row[field]
    if type(number) is not int:  # True is an int, and no length
        raise ValueError(f"{field} {str(number)[:40]!r} is not a whole number")
    if not least <= number <= most:
        raise ValueError(f"{field} {str(number)[:40]} is not in {least} to {most:,}")
    return number


def _blocks(ids: object, input_tokens: int) -> tuple[int, ...]:
    """Check the ids: as many as the prompt has blocks, with or without a partial last one.

    Both exist: the published traces count the part, tools that make such files do not.
    """
    if not isinstance(ids, list) or any(type(each) is not int or each < 0 for each in ids):
        raise ValueError("hash_ids is not a list of whole numbers")
    whole, left = divmod(input_tokens, BLOCK_TOKENS)
    if ids and len(ids) not in (whole, whole + (left > 0)):
        raise ValueError(
            f"{len(ids)} hash_ids do not fit input_length {input_tokens}"
            f" in blocks of {BLOCK_TOKENS} tokens"
        )
    return tuple(ids)
