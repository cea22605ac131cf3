"""A day-and-night policy: how many groups of chips serve; the others train.

`Never` and `Fixed` ignore the load.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from emulator.errors import ConfigError
from serving.policy.day_night.observation import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Groups that are to serve from now on, and a short reason."""

    serving_groups: int
    reason: str

    def __post_init__(self) -> None:
        if self.serving_groups < 0:
            raise ConfigError("serving_groups", self.serving_groups, ">= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(ABC):
    """Decides by the observation alone. `str()` begins with `name`, the kind, and is the text that
    `parse_policy` reads. `weighs_demand`: later decisions depend on the demand until then.
    """

    name: ClassVar[str]
    weighs_demand: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def decide(self, observed: Observation) -> Decision:
        """Groups that serve, from `groups_min` to `groups`."""

    @abstractmethod
    def describe(self) -> str:
        """State what it does and assumes, in one line for reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Never(Policy):
    """All groups serve, always."""

    name = "never"

    def decide(self, observed: Observation) -> Decision:
        """All serve."""
        return Decision(serving_groups=observed.groups, reason="never lends")

    def describe(self) -> str:
        """State what it does."""
        return "never: all groups serve at all times"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(Policy):
    """A fixed number of groups serves; the others train. Raises ConfigError below 0."""

    name = "fixed"

    serving_groups: int

    def __post_init__(self) -> None:
        if self.serving_groups < 0:
            raise ConfigError("fixed", self.serving_groups, ">= 0 groups")

    def __str__(self) -> str:
        return f"{self.name}:{self.serving_groups}"

    def decide(self, observed: Observation) -> Decision:
        """The fixed number, within the observation's bounds."""
        serving = min(max(self.serving_groups, observed.groups_min), observed.groups)
        return Decision(serving_groups=serving, reason="a fixed split")

    def describe(self) -> str:
        """State what it does."""
        return f"{self}: {self.serving_groups} groups serve at all times, the others train"


def decided(policy: Policy, observed: Observation) -> Decision:
    """What a running server does: all groups serve where a policy of the user's fails."""
    try:
        return policy.decide(observed)
    except ConfigError as error:
        return Decision(serving_groups=observed.groups, reason=f"all serve: {error}")
