"""Flags under their old names, which work for one release with a warning."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

RENAMED: Final[Mapping[str, str]] = {
    "--reserve": "--interactive-headroom",
    "--reading": "--assumption",
    "--chip-hour-dollars": "--price-chip-hour",
    "--chip-hour": "--price-chip-hour",
    "--system-hour-dollars": "--price-hour",
    "--system-hour": "--price-hour",
    "--kwh-dollars": "--price-kwh",
    "--kwh": "--price-kwh",
}
"""In every command."""

_PLANNED: Final = {"--speed-up": "--speedup", "--window": "--peak-window"}
RENAMED_IN: Final[Mapping[str, Mapping[str, str]]] = {
    "plan": _PLANNED,
    "compare": _PLANNED,
    "pareto": {
        "--isl": "--input",
        "--osl": "--output",
        "--prefill-chunk": "--prefill-tokens",
        "--max-batched-tokens": "--max-num-batched-tokens",
        "--png": "--plot",
    },
    "day": {"--replica-chips": "--chips", "--grace": "--drain-grace"},
    "profile": {"--steps": "--keep-steps"},
    "simulate": {"--plot": "--html"},
    "explain": {"--png": "--plot", "--svg": "--plot"},
    "explain step": {"--prompt": "--input"},
    "serve": {"--isl": "--input", "--osl": "--output"},
    "train": {"--output": "--dir"},
}
"""By the command, or the command and its subject: there a name had, or has, another meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldLengths:
    """Lognormal lengths as a command spelled them: a number each, and a spread of both.

    A number was a mean, or a median; `prompt` and `output` are the old defaults.
    """

    flags: tuple[str, str]
    prompt: float
    output: float
    of_median: bool = False
    spread: float = 0.5

    def words(self, given: Mapping[str, float]) -> dict[str, str]:
        """Today's options with the same lengths, by flag; `given` is by old flag."""
        sigma = given.get(SPREAD, self.spread)
        numbers = (given.get(self.flags[0], self.prompt), given.get(self.flags[1], self.output))
        return {
            flag: self._lognormal(number, sigma)
            for flag, number in zip(("--input", "--output"), numbers, strict=True)
        }

    def _lognormal(self, number: float, sigma: float) -> str:
        mean = number * math.exp(sigma**2 / 2) if self.of_median else number
        deviation = mean * math.sqrt(math.expm1(sigma**2))
        return f"lognormal:{mean:.6g},{deviation:.6g}" if deviation > 0 else f"{round(mean)}"


SPREAD: Final = "--spread"
_PLANNED_LENGTHS: Final = OldLengths(flags=("--isl", "--osl"), prompt=1_024, output=256)
OLD_LENGTHS: Final[Mapping[str, OldLengths]] = {
    "plan": _PLANNED_LENGTHS,
    "compare": _PLANNED_LENGTHS,
    "profile": OldLengths(
        flags=("--prompt-tokens", "--output-tokens"), prompt=1_024, output=128, of_median=True
    ),
}
"""By command."""


def with_new_names(arguments: Sequence[str]) -> list[str]:
    """The command line with today's names; a line on stderr for each old one."""
    command = " ".join(arguments[:2]).lower()
    renames = {**RENAMED}
    for known in (command.partition(" ")[0], command):
        renames |= RENAMED_IN.get(known, {})
    renamed: list[str] = []
    for place, argument in enumerate(arguments):
        if argument == "--":
            return [*_with_lengths(renamed), *arguments[place:]]
        name, equals, value = argument.partition("=")
        new = renames.get(name.replace("_", "-"))
        if new is not None:
            print(f"warning: {name} is now {new}; the old name goes in 0.2", file=sys.stderr)
        renamed.append(argument if new is None else new + equals + value)
    return _with_lengths(renamed)


def _with_lengths(arguments: list[str]) -> list[str]:
    """The command line with old lengths as today's, a line on stderr for them together.

    What is no number is left as it is, to be refused.
    """
    old = OLD_LENGTHS.get(arguments[0]) if arguments else None
    if old is None:
        return arguments
    given, kept = {}, []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name not in (*old.flags, SPREAD):
            kept.append(argument)
            continue
        try:
            given[name] = float(value if equals else next(rest, ""))
        except ValueError:
            return arguments
        if not 0 <= given[name] < math.inf or (name == SPREAD and given[name] > _SPREAD_MAX):
            return arguments
    if not given:
        return arguments
    new = {
        flag: words
        for flag, words in old.words(given).items()
        if not any(each.partition("=")[0] == flag for each in kept)
    }
    said = " ".join(f"{flag} {words}" for flag, words in new.items())
    print(f"warning: {', '.join(given)}: say {said}; the old names go in 0.2", file=sys.stderr)
    return [*kept, *(word for each in new.items() for word in each)]


_SPREAD_MAX: Final = 3.0
"""The most that a spread could be."""
