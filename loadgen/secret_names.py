"""Recognizes secrets by their names, to keep them out of reports."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

_SECRET_HEADER: Final = re.compile(r"auth|cookie|key|token|secret|password|credential", re.I)
_SECRET_MEMBER: Final = re.compile(
    r"auth|cookie|secret|password|credential|(api|access|private)[_-]?key"
    r"|(api|access|bearer)[_-]?token|^(key|token)$",
    re.I,
)


def open_header(text: str) -> str:
    """Write a header for a report: a secret `NAME:VALUE` becomes `NAME:@VARIABLE`."""
    name, _, value = (part.strip() for part in text.partition(":"))
    if value.startswith("@") or not _SECRET_HEADER.search(name):
        return text
    return f"{name}:@{re.sub('[^A-Z0-9]', '_', name.upper())}"


def secret_member(value: object) -> str | None:
    """The name of a text member, at any depth, that looks like a secret; None without one."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(inner, str) and _SECRET_MEMBER.search(name):
                return str(name)
    inners: Iterable[object] = ()
    if isinstance(value, Mapping):
        inners = value.values()
    elif isinstance(value, list):
        inners = value
    return next((found for found in map(secret_member, inners) if found is not None), None)
