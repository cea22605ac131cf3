"""Checked options of a sweep."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from loadgen import option_values
from loadgen.errors import OptionError
from loadgen.measures.slo import Slo
from loadgen.records.sweep_record import Axis
from loadgen.runs.options import ClassOptions, RunOptions
from loadgen.sweeps.load_grid import load_words
from startup.typed_options import option

ERROR_SHARE: Final = 0.05
"""Chance of a wrong verdict on a load, over all its runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """A run repeated at rising `loads` of the class `vary`; results go into `folder`.

    With an SLO of any class the highest load that keeps it is searched, to within `precision` of
    the load; an undecided load is run up to `repeats` times, each twice as long. Raises OptionError
    for an unknown class.
    """

    run: RunOptions
    axis: Axis
    loads: tuple[float, ...]
    vary: str
    folder: Path
    precision: float = option(
        0.05,
        "with --slo: how close the highest load is searched, as in 5%",
        type=option_values.share,
        metavar="SHARE",
    )
    repeats: int = option(
        4,
        "with --slo: most runs at one load, each but the first with twice as many requests",
        type=option_values.count,
    )

    def __post_init__(self) -> None:
        names = [each.name for each in self.run.classes]
        if self.vary not in names:
            raise OptionError("--vary", self.vary, " or ".join(names))

    @property
    def tail(self) -> float:
        """Chance of error of each run at a load, on either side."""
        return ERROR_SHARE / self.repeats

    @property
    def levels(self) -> tuple[tuple[str, Slo], ...]:
        """Classes with an SLO, and theirs."""
        return tuple((each.name, each.slo) for each in self.run.classes if each.slo is not None)

    @staticmethod
    def growth(repeat: int) -> int:
        """Requests of the `repeat`-th run at a load over the first's: 1, 2, 4, 8."""
        return 1 << repeat

    def at(self, load: float, *, position: int, repeat: int = 0) -> RunOptions:
        """The run at `load`, number `position` of the sweep, after `repeat` runs at that load.

        Every run has its own seed: earlier prompts would be found in a prefix cache.
        """
        classes = tuple(
            self._sized(self._loaded(each, load) if each.name == self.vary else each, repeat)
            for each in self.run.classes
        )
        name = f"{position + 1:03}-{self.axis}-{load_words(load)}.jsonl"
        return replace(
            self.run, classes=classes, seed=self.run.seed + position, results=self.folder / name
        )

    def _loaded(self, each: ClassOptions, load: float) -> ClassOptions:
        words = load_words(load)
        rate, concurrency = (words, None) if self.axis == "rate" else (None, words)
        return replace(each, arrivals=replace(each.arrivals, rate=rate, concurrency=concurrency))

    def _sized(self, each: ClassOptions, repeat: int) -> ClassOptions:
        """A class `growth` times as long, in requests or in time, whichever bounds it."""
        growth = self.growth(repeat)
        sessions, duration_s = each.workload.sessions, each.arrivals.duration_s
        return replace(
            each,
            workload=replace(
                each.workload, sessions=None if sessions is None else sessions * growth
            ),
            arrivals=replace(
                each.arrivals, duration_s=None if duration_s is None else duration_s * growth
            ),
        )
