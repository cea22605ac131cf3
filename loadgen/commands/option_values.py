"""Values as they are typed after an option, each turned into what it means.

Each function is a `type` of argparse: it raises ArgumentTypeError saying what was expected. What a
room reads by itself (a rate, lengths, an SLO) is read there, and refused there.
"""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.durations import parse_duration_s


def count(text: str) -> int:
    """A whole number from 1 on."""
    return _whole(text, least=1)


def count_or_zero(text: str) -> int:
    """A whole number from 0 on."""
    return _whole(text, least=0)


def above_zero(text: str) -> float:
    """A number above 0."""
    value = not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError(f"expected a number above 0, not {text!r}")
    return value


def not_negative(text: str) -> float:
    """A number from 0 on, not infinite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, not {text!r}")
    return value


def share(text: str) -> float:
    """A share above 0 and up to 1, or a percentage: `0.1`, `10%`."""
    number = text.removesuffix("%")
    value = above_zero(number) / (100 if number != text else 1)
    if value > 1:
        raise argparse.ArgumentTypeError(f"expected a share of at most 1, not {text!r}")
    return value


def duration_s(text: str) -> float:
    """Seconds, of `10s`, `200ms`, `2m`, or a bare number."""
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def some_duration_s(text: str) -> float:
    """Seconds, more than none."""
    seconds = duration_s(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"expected a time above 0, not {text!r}")
    return seconds


def window_s(text: str) -> tuple[float, float]:
    """`FROM-TO`, both times, the second later: `10m-70m`."""
    first, dash, last = text.partition("-")
    if not dash:
        raise argparse.ArgumentTypeError(f"expected FROM-TO, as in 10m-70m, not {text!r}")
    begin_s, end_s = duration_s(first), duration_s(last)
    if begin_s >= end_s:
        raise argparse.ArgumentTypeError(f"expected a window that ends after it begins: {text!r}")
    return begin_s, end_s


def shared_prefix(text: str) -> tuple[int, int]:
    """`TOKENS` or `TOKENSxGROUPS`: the length of a system prompt, and how many there are."""
    return _count_x_count(text)


def fan_out(text: str) -> tuple[int, int]:
    """`WIDTHxDEPTH`, or `WIDTH` for one level."""
    return _count_x_count(text)


def long_context(text: str) -> tuple[float, int]:
    """`SHARE:TOKENS`: the share of sessions with a long prompt, and its length."""
    part, colon, tokens = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"expected SHARE:TOKENS, as in 5%:32000, not {text!r}")
    return share(part), count(tokens)


def header(text: str) -> tuple[str, str]:
    """`NAME:VALUE`, spaces around both taken off."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or any(character in text for character in "\r\n"):
        raise argparse.ArgumentTypeError(f"expected NAME:VALUE, not {text!r}")
    return name.strip(), value.strip()


def json_object(text: str) -> Mapping[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, not {text!r}")
    return value


def target(text: str) -> str:
    """`HOST:PORT`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, not {text!r}")
    return text


def new_file(text: str) -> Path:
    """A file that may or may not be there, in a folder that is."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that exists, not {text!r}")
    return path


def _count_x_count(text: str) -> tuple[int, int]:
    first, times, second = text.partition("x")
    return count(first), count(second) if times else 1


def _whole(text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, not {text!r}")
    return int(text)
