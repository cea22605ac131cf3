"""A policy that a user writes: a function of a Python file, from the observation to the groups.

The file is run when the policy is read, with all rights of the process. A function that is not pure
makes the policy so.
"""

import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from emulator.errors import ConfigError
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Decision, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPolicy(Policy):
    """Groups as `function` of the file says, within the observation's bounds."""

    name = "python"
    weighs_demand = True

    file: str
    function: str
    serving_groups: Callable[[Observation], Any] = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `FILE.py:FUNCTION` and run the file; raises ConfigError."""
        file, colon, function = text.strip().rpartition(":")
        if not (colon and file.endswith(".py") and function.isidentifier()):
            raise ConfigError("python", text, "FILE.py:FUNCTION")
        try:
            known = runpy.run_path(file)
        except (Exception, SystemExit) as error:  # a user's file, and what it raises
            words = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            raise ConfigError("python", file, f"a Python file that runs ({words})") from error
        if not callable(known.get(function)):
            raise ConfigError("python", text, f"a function named {function} in {file}")
        return cls(file=file, function=function, serving_groups=known[function])

    def __str__(self) -> str:
        return f"{self.name}:{self.file}:{self.function}"

    def decide(self, observed: Observation) -> Decision:
        """What the function returns, a whole number; raises ConfigError for what it raises."""
        try:
            wanted = self.serving_groups(observed)
        except Exception as error:
            expected = f"a function that does not raise ({type(error).__name__}: {error})"
            raise ConfigError("policy", self, expected) from error
        if not isinstance(wanted, int) or isinstance(wanted, bool):
            raise ConfigError("policy", self, f"a whole number of groups, not {wanted!r}")
        serving = min(max(wanted, observed.groups_min), observed.groups)
        return Decision(serving_groups=serving, reason=f"{self.function} says {wanted}")

    def describe(self) -> str:
        """State where it is."""
        return f"{self}: as the function {self.function} of {self.file} decides"
