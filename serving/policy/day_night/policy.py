"""A day-and-night policy: how many groups of chips serve now, the others train."""

from dataclasses import dataclass
from typing import Protocol

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


class Policy(Protocol):
    """Decides by what was observed and the clock alone: the same observation, the same decision.

    `str()` of a policy is the text that `parse_policy` reads.
    """

    @property
    def name(self) -> str:
        """The policy's kind, the text before a colon."""
        ...

    def decide(self, observed: Observation) -> Decision:
        """Return how many groups serve, at least `groups_min` and at most `groups`."""
        ...

    def describe(self) -> str:
        """Say in one line what it does and what it assumes, for reports."""
        ...
