"""Parsers of option values.

Each function is a `type` of argparse and raises ArgumentTypeError saying what was expected. Values
that a package parses by itself (a rate, lengths, an SLO) are refused there.
"""

import argparse
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from loadgen.durations import parse_duration_s
from loadgen.records.plain_number import plain_number
from loadgen.secret_names import secret_member

COUNT_MAX: Final = 10**9
"""More of anything than can be planned or sent: a slip of the hand."""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def count(text: str) -> int:
    """A whole number from 1 on."""
    return _whole(text, least=1)


def count_or_zero(text: str) -> int:
    """A whole number from 0 on."""
    return _whole(text, least=0)


def seed(text: str) -> int:
    """A whole number from 0 on, up to 63 bits."""
    return _whole(text, least=0, most=2**63 - 1)


def above_zero(text: str) -> float:
    """A number above 0."""
    value = not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError(f"expected a number above 0, not {text!r}")
    return value


def not_negative(text: str) -> float:
    """A finite number from 0 on."""
    try:
        return plain_number(text)
    except ValueError as error:
        expected = f"expected a number of at least 0, not {text!r}"
        raise argparse.ArgumentTypeError(expected) from error


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
    """Seconds, above 0."""
    seconds = duration_s(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"expected a time above 0, not {text!r}")
    return seconds


def window_s(text: str) -> tuple[float, float]:
    """`FROM-TO`, the second later: `10m-70m`."""
    first, dash, last = text.partition("-")
    if not dash:
        raise argparse.ArgumentTypeError(f"expected FROM-TO, as in 10m-70m, not {text!r}")
    begin_s, end_s = duration_s(first), duration_s(last)
    if begin_s >= end_s:
        raise argparse.ArgumentTypeError(f"expected a window that ends after it begins: {text!r}")
    return begin_s, end_s


def count_times_count(text: str) -> tuple[int, int]:
    """`TOKENSxGROUPS` of a shared prefix, or `WIDTHxDEPTH` of a fan-out; `x1` may be left out."""
    first, times, second = text.partition("x")
    return count(first), count(second) if times else 1


def long_context(text: str) -> tuple[float, int]:
    """`SHARE:TOKENS`: the share of sessions with a long prompt, and its length."""
    part, colon, tokens = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"expected SHARE:TOKENS, as in 5%:32000, not {text!r}")
    return share(part), count(tokens)


def header(text: str) -> tuple[str, str]:
    """`NAME:VALUE`, stripped; `NAME:@VARIABLE` reads the value from the environment.

    Errors do not repeat the text: it may be a secret.
    """
    name, colon, value = (part.strip() for part in text.partition(":"))
    if value.startswith("@") and _VARIABLE.fullmatch(value[1:]):
        if value[1:] not in os.environ:
            raise argparse.ArgumentTypeError(f"the environment has no variable {value[1:]}")
        value = os.environ[value[1:]].strip()
    if not colon or not name or any(character in name + value for character in "\r\n\0"):
        raise argparse.ArgumentTypeError("expected NAME:VALUE or NAME:@VARIABLE")
    return name, value


def json_object(text: str) -> Mapping[str, Any]:
    """A JSON object, or `@FILE` with one.

    An object with a secret must be in a file: the command line is in every report.
    """
    in_file = text.startswith("@")
    try:
        value = json.loads(Path(text[1:]).read_bytes() if in_file else text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text[1:]}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("expected a JSON object or @FILE with one")
    if not in_file and (name := secret_member(value)) is not None:
        raise argparse.ArgumentTypeError(
            f"{name} looks like a secret, and the command is in every report: put the object into "
            "a file and give @FILE"
        )
    return value


def target(text: str) -> str:
    """`HOST:PORT`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, not {text!r}")
    return text


def readable(text: str) -> str:
    """Printable UTF-8 text."""
    if not text.isprintable():
        raise argparse.ArgumentTypeError(f"expected printable text, not {text!r}")
    return text


def new_file(text: str) -> Path:
    """A path in an existing folder."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that exists, not {text!r}")
    return path


def _whole(text: str, *, least: int, most: int = COUNT_MAX) -> int:
    if not (text.isascii() and text.isdigit()) or float(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, not {text!r}")
    if float(text) > most:
        raise argparse.ArgumentTypeError(f"expected at most {most:,}, not {text!r}")
    return int(text)
