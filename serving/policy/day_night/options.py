"""Options in a policy's text, `headroom=0.2,dwell=30m`, to and from dataclasses."""

import re
import warnings
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from emulator.errors import ConfigError

_UNITS_S: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_RENAMED: Final = {"ttft_target": "target"}
"""Options under their old names, which work for one release with a warning."""

_DURATION: Final = re.compile(r"(?P<number>[0-9.eE+-]+)(?P<unit>[dhms]?)")


def duration_s(text: str, *, field: str) -> float:
    """Read `30m`, `2h`, `1d`, `90s` or plain seconds; raises ConfigError."""
    matched = _DURATION.fullmatch(text.strip())
    try:
        if matched is None:
            raise ValueError(text)
        seconds = float(matched["number"]) * _UNITS_S[matched["unit"] or "s"]
    except ValueError:
        raise ConfigError(field, text, "a time such as 90s, 30m, 2h or 1d") from None
    return seconds


def duration_text(seconds: float) -> str:
    """Format a time that `duration_s` reads back exactly."""
    for unit, unit_s in _UNITS_S.items():
        if seconds and seconds % unit_s == 0 and seconds < 1e9:
            return f"{int(seconds / unit_s)}{unit}"
    return f"{seconds!r}s"


def check_learning(*, confidence: float, warm_s: float) -> None:
    """Raise ConfigError unless a policy can learn with these from the days before."""
    if not 0 < confidence < 1:
        raise ConfigError("confidence", confidence, "between 0 and 1")
    if not 0 <= warm_s < float("inf"):
        raise ConfigError("warm_s", warm_s, ">= 0 seconds")


def options_text(policy: Any, default: Any) -> str:
    """Format the fields that differ from the default's, a `guard`'s included."""
    return ",".join(
        f"{name}={text}"
        for name, text in _options(policy).items()
        if _options(default).get(name) != text
    )


def with_options(policy: Any, text: str) -> Any:
    """The policy with the options of a text; raises ConfigError for an unknown one."""
    for part in text.split(",") if text.strip() else []:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = _new_name(name)
        known = _options(policy)
        if not equals or name not in known:
            raise ConfigError("policy option", part, f"NAME=VALUE with one of {', '.join(known)}")
        policy = _replaced(policy, name, value)
    return policy


def _new_name(name: str) -> str:
    if name not in _RENAMED:
        return name
    said = f"policy option {name} is now {_RENAMED[name]}; the old name goes in 0.2"
    warnings.warn(said, FutureWarning, stacklevel=2)
    return _RENAMED[name]


def _options(policy: Any) -> dict[str, str]:
    """Each option's name and text: fields of numbers, and times ending in _s."""
    options: dict[str, str] = {}
    for known in fields(policy):
        value = getattr(policy, known.name)
        if is_dataclass(value) and known.name == "guard":
            options |= _options(value)
        elif known.name.endswith("_s"):
            options[known.name.removesuffix("_s")] = duration_text(value)
        elif isinstance(value, int | float):
            options[known.name] = repr(value)
    return options


def _replaced(policy: Any, name: str, text: str) -> Any:
    for known in fields(policy):
        value = getattr(policy, known.name)
        if is_dataclass(value) and known.name == "guard" and name in _options(value):
            return replace(policy, guard=_replaced(value, name, text))
        if known.name == f"{name}_s":
            return replace(policy, **{known.name: duration_s(text, field=name)})
        if known.name == name:
            return replace(policy, **{name: _number(text, type(value), field=name)})
    raise AssertionError(name)


def _number(text: str, kind: type, *, field: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(field, text, "a whole number" if kind is int else "a number") from None
