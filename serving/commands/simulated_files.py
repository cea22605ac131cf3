"""The files that `ultraserve simulate` leaves: results for `ultraserve-loadgen`, and a page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from emulator.errors import ConfigError
from serving.commands.analysis_options import PageOptions
from startup.typed_options import option, without_options

if TYPE_CHECKING:
    from loadgen.records.results_file import ResultsWriter
    from serving.analysis.simulate.simulated_record import SimulatedRecord
    from serving.analysis.simulate.simulated_report import SimulatedReport
    from serving.analysis.simulate.step_series import StepSeries

OUTPUTS: Final = frozenset(("--results", "--html"))


@dataclass(frozen=True, kw_only=True)
class SimulatedFileOptions(PageOptions):
    """The files."""

    GROUP = "files"

    results: Path | None = option(
        None,
        "the run as `ultraserve-loadgen` writes one, for its `report` and `compare`; a file that "
        "is not there yet, or empty",
    )

    def __post_init__(self) -> None:
        """Refuse a page that cannot be written, before the run."""
        self.check_page()
        if self.html is None or self.results is None:
            return
        if self.results.absolute() == self.html.absolute():
            raise ConfigError("html", self.html, "another file than --results")

    @property
    def has_files(self) -> bool:
        """Whether any was asked for."""
        return self.results is not None or self.html is not None

    def writer(self) -> AbstractContextManager[ResultsWriter | None]:
        """What writes the results, tried before the run; raises OptionError."""
        from loadgen.records.results_file import ResultsWriter

        return nullcontext() if self.results is None else ResultsWriter(self.results)

    def write(
        self,
        made: SimulatedRecord,
        report: SimulatedReport,
        steps: StepSeries | None,
        *,
        writer: ResultsWriter | None,
        say: Callable[[str], None],
    ) -> None:
        """Write what was asked for; raises OptionError, and ConfigError for the page."""
        record = None if self.html is None else made.record()
        if writer is not None:
            writer.header(made.header())
            for result in made.results() if record is None else record.results:
                writer.result(result)
            writer.end(made.end())
            say(f"results: {self.results}")
        if record is not None and self.html is not None and steps is not None:
            from loadgen.measures.measurement import measure_run
            from loadgen.reports.run_report import RunReport
            from serving.analysis.simulate.simulated_page import SimulatedPage

            page = SimulatedPage(
                record_report=RunReport(record=record, measures=measure_run(record)),
                report=report,
                run=made.run,
                deployment=made.deployment,
                steps=steps,
            )
            self.write_page(lambda: page)


def repeating_command(words: Sequence[str]) -> str:
    """The command of `words`, a process's without its name, without its files."""
    return shlex.join(["ultraserve", *without_options(words, OUTPUTS)])
