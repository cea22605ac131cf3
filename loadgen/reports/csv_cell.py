"""A cell of CSV whose words come from elsewhere: a server, a file, whoever typed a label."""

from typing import Final

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the start of a formula, which it would run."""


def text_cell(words: str) -> str:
    """The words as a spreadsheet shows them; after an apostrophe where it would run them.

    Numbers stay as they are, negative ones too.
    """
    if not words.startswith(_FORMULA):
        return words
    try:
        float(words)
    except ValueError:
        return f"'{words}"
    return words
