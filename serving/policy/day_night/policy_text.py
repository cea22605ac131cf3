"""Parser of policies as users write them; `str()` of a policy is such a text."""

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
        case "schedule" if rest:
            return SchedulePolicy.parse(rest)
        case "demand":
            demand: DemandPolicy = with_options(DemandPolicy(), rest)
            return demand
        case "quantile":
            return QuantilePolicy.parse(rest)
        case "erlang":
            erlang: ErlangPolicy = with_options(ErlangPolicy(), rest)
            return erlang
        case "price" if rest:
            return Price.parse(rest)
        case "carbon" if rest:
            return Carbon.parse(rest)
        case "python" if rest:
            return UserPolicy.parse(rest)
        case "oracle":
            expected = "a policy that need not know the day: there is no recorded demand here"
            raise ConfigError("policy", text, expected)
    raise ConfigError("policy", text, POLICY_EXPECTED)
