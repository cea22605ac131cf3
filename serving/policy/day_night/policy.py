"""A day-and-night policy: how many groups of chips serve; the others train."""

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
            expected = ">= 0"
            raise ConfigError("serving_groups", self.serving_groups, expected)


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
