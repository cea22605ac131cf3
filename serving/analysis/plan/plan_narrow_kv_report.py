"""What FP8 KV would save a plan, in words and as data."""

from collections.abc import Callable, Iterator
from typing import Any

from loadgen.records.plain_number import counted
from serving.analysis.plan.plan_narrow_kv import LEAST, NARROW, NarrowKv
from serving.analysis.plan.size_check import Check


def narrow_kv_line(found: NarrowKv | None, size_words: Callable[[Check], str]) -> Iterator[str]:
    """For the first lines; none where it was not tried."""
    if found is None:
        return
    said = f"kv:    with KV of {NARROW} (--kv-cache-dtype {NARROW})"
    check = found.check
    over = "" if found.is_whole else "; the time was over before more were tried (--budget)"
    if check is None:
        yield f"{said} {_none_words(found)}{over}"
        return
    yield (
        f"{said} {size_words(check)}: {check.verdict}, {check.reached_words}; engines with at "
        f"least {100 * LEAST:g} % of the plan's chips were tried{over}; what it does to replies is "
        "not in the model (ultraserve quality measures how many agree), so that it is your choice"
    )


def _none_words(found: NarrowKv) -> str:
    if not found.tried:
        return "nothing smaller was to be tried"
    least, most = min(found.tried), max(found.tried)
    if least == most:
        return f"{counted(most, 'chip')}, the one size tried, were not found to keep the target"
    count = len(found.tried)
    return f"none of {count} sizes tried, {least:,} to {most:,} chips, was found to keep the target"


def narrow_kv_data(found: NarrowKv | None) -> dict[str, Any] | None:
    """In base units."""
    if found is None:
        return None
    check = found.check
    return {
        "kv_cache_dtype": NARROW,
        "chips": None if check is None else check.chips,
        "surely_meets": None if check is None else check.surely_meets,
        "sizes_tried_chips": found.tried,
        "is_whole": found.is_whole,
    }
