"""Parser of policies as users write them; `str()` of a policy is such a text."""

from collections.abc import Callable, Mapping
from typing import Final

from emulator.errors import ConfigError
from serving.policy.day_night.demand import DemandPolicy
from serving.policy.day_night.erlang import ErlangPolicy
from serving.policy.day_night.options import with_options
from serving.policy.day_night.policy import Fixed, Never, Policy
from serving.policy.day_night.price import Carbon, Price
from serving.policy.day_night.quantile import QuantilePolicy
from serving.policy.day_night.schedule import SchedulePolicy
from serving.policy.day_night.user_policy import UserPolicy

POLICY_EXPECTED: Final = (
    "never, fixed:GROUPS, schedule:22:00-06:00[@ZONE][;OPTIONS], demand[:OPTIONS], "
    "quantile[:0.99][,OPTIONS], erlang[:OPTIONS], price:FILE[@ZONE][;OPTIONS] (FILE may be "
    "'assumed'), carbon:FILE[@ZONE][;OPTIONS], python:FILE.py:FUNCTION, "
    "where OPTIONS are such as headroom=0.1,dwell=30m"
)


_WITH_OPTIONS: Final[Mapping[str, Callable[[str], Policy]]] = {
    "demand": lambda options: _optioned(DemandPolicy(), options),
    "quantile": QuantilePolicy.parse,
    "erlang": lambda options: _optioned(ErlangPolicy(), options),
}
"""Kinds that need nothing after their name."""

_OF_SOMETHING: Final[Mapping[str, Callable[[str], Policy]]] = {
    "schedule": SchedulePolicy.parse,
    "price": Price.parse,
    "carbon": Carbon.parse,
    "python": UserPolicy.parse,
}

KINDS: Final = ("never", "fixed", *_WITH_OPTIONS, *_OF_SOMETHING)


def parse_policy(text: str) -> Policy:
    """Read a policy's text, and the files of `price`, `carbon` and `python`, which it runs.

    Raises ConfigError, one line that names the wrong part.
    """
    kind, colon, rest = text.strip().partition(":")
    match kind:
        case "never" if not colon:
            return Never()
        case "fixed" if rest.strip().isascii() and rest.strip().isdigit():
            return Fixed(serving_groups=int(rest))
        case "oracle":
            expected = "a policy that need not know the day: there is no recorded demand here"
            raise ConfigError("policy", text, expected)
    if kind in _WITH_OPTIONS:
        return _WITH_OPTIONS[kind](rest)
    if kind in _OF_SOMETHING and rest:
        return _OF_SOMETHING[kind](rest)
    raise ConfigError("policy", text, POLICY_EXPECTED)


def _optioned(policy: Policy, options: str) -> Policy:
    read: Policy = with_options(policy, options)
    return read
