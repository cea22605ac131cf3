"""A day-and-night policy: how many groups of chips serve now, the others train."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from emulator.errors import ConfigError
from serving.policy.day_night.observation import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How many groups are to serve from now on, and why in a few words."""

    serving_groups: int
    reason: str

    def __post_init__(self) -> None:
        if self.serving_groups < 0:
            expected = ">= 0"
            raise ConfigError(field="serving_groups", value=self.serving_groups, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(ABC):
    """Decides by what was observed and the clock alone: the same observation, the same decision.

    `name` is its kind, and `str()` of a policy, which begins with it, the text that `parse_policy`
    reads. `weighs_demand`: what it does later depends on the demand until then.
    """

    name: ClassVar[str]
    weighs_demand: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def decide(self, observed: Observation) -> Decision:
        """Return how many groups serve, at least `groups_min` and at most `groups`."""

    @abstractmethod
    def describe(self) -> str:
        """Say in one line what it does and what it assumes, for reports."""
