"""A dashboard's variables filled in, as Grafana does."""

import re
from collections.abc import Mapping, Sequence

VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)(?::\w+)?\}|\[\[(\w+)\]\]")

Value = str | Sequence[str]


def filled(text: str, values: Mapping[str, Value]) -> str:
    """`text` with the value of each $name, ${name} and [[name]]; several values become a regex.

    Raises KeyError for a variable without a value.
    """

    def value(found: re.Match[str]) -> str:
        (name,) = (each for each in found.groups() if each)
        given = values[name]
        if isinstance(given, str):
            return given
        escaped = [re.escape(each).replace("\\", "\\\\") for each in given]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"

    return VARIABLE.sub(value, text)
