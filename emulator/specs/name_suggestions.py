"""Suggests catalog names for an unknown one. Pure."""

import difflib
import re
from collections.abc import Collection
from typing import Final

_SUGGESTED_MAX: Final = 3

_CUTOFF: Final = 0.7
"""Least likeness (difflib's ratio) of a suggestion. Assumed: a letter or two wrong or swapped."""

_LETTERS_MIN: Final = 3
"""Least letters of a prefix of suggested names."""


def suggested_names(given: str, names: Collection[str]) -> list[str]:
    """The likeliest of `names`, in their order; none where none is similar.

    Hugging Face's ids differ from the catalog's by an organisation before a slash, and by a suffix
    ("-Instruct-2507").
    """
    wanted = _letters(given.rstrip("/").rpartition("/")[2])
    if len(wanted) < _LETTERS_MIN:
        return []
    spelled = {name: _letters(name) for name in names}
    inside = [name for name, letters in spelled.items() if wanted.startswith(letters)]
    if inside:
        return [max(inside, key=len)]
    begun = [name for name, letters in spelled.items() if letters.startswith(wanted)]
    if begun:
        return begun[:_SUGGESTED_MAX]
    close = difflib.get_close_matches(wanted, spelled.values(), n=_SUGGESTED_MAX, cutoff=_CUTOFF)
    return [name for name, letters in spelled.items() if letters in close]


def did_you_mean(given: str, names: Collection[str]) -> str:
    """The end of a message about an unknown name: "; did you mean a or b?", or empty."""
    found = suggested_names(given, names)
    if not found:
        return ""
    *others, last = found
    text = f"{', '.join(others)} or {last}" if others else last
    return f"; did you mean {text}?"


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
