"""The loads of a sweep: `1,2,4,8`, `1-64x2`, or up to a highest one."""

import math
from typing import Final

from loadgen.errors import OptionError
from loadgen.records.plain_number import plain_number
from loadgen.records.sweep_record import Axis

LOADS_MAX: Final = 100
"""More points than a typing error should start."""

DOUBLINGS_BELOW_MAX: Final = 6
"""A sweep up to R begins at R / 64 and doubles."""

FORMS: Final = "loads such as 1,2,4,8, or FROM-TOxFACTOR, as in 1-64x2"


def parse_loads(text: str, *, axis: Axis, option: str) -> tuple[float, ...]:
    """The loads in rising order, each once; raises OptionError.

    A concurrency is a whole number. The last of FROM-TOxFACTOR is TO itself.
    """
    try:
        loads = _range(text) if "x" in text else tuple(_number(word) for word in text.split(","))
    except ValueError:
        raise OptionError(option, text, FORMS) from None
    if axis == "concurrency":
        if "x" in text:
            loads = tuple(float(round(load)) for load in loads)
        if any(not load.is_integer() for load in loads):
            raise OptionError(option, text, "whole numbers from 1 on")
    if len(loads) > LOADS_MAX:
        raise OptionError(option, text, f"at most {LOADS_MAX} loads")
    return tuple(sorted(set(loads)))


def loads_up_to(highest: float) -> tuple[float, ...]:
    """Double up to `highest`, from a sixty-fourth of it."""
    halvings = range(DOUBLINGS_BELOW_MAX, -1, -1)
    return tuple(float(load_words(highest / 2**each)) for each in halvings)


def load_words(load: float) -> str:
    """A load with no more digits than needed, as in file names."""
    return f"{load:.6g}"


def _range(text: str) -> tuple[float, ...]:
    ends, _, step = text.partition("x")
    first, dash, last = ends.partition("-")
    low, high, factor = _number(first), _number(last), _number(step)
    if not dash or high < low or factor <= 1:
        raise ValueError(text)
    # So small a factor that it takes more than the loads allowed is refused by their number.
    steps = min(math.floor(math.log(high / low) / math.log(factor) + 1e-9), LOADS_MAX)
    loads = [low * factor**step for step in range(steps + 1)]
    if loads[-1] < high * (1 - 1e-9):
        loads.append(high)
    return tuple(float(load_words(load)) for load in loads)


def _number(text: str) -> float:
    value = plain_number(text)
    if not value:
        raise ValueError(text)
    return value
