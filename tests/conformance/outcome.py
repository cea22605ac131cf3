"""The outcome of one client's run."""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One client against the server.

    Attributes:
        failures: one line per failed case; a fault of the whole run is a case of its own.
        excluded: cases not run, or expected to fail, by reason.
        figures: the client's measurements, by a name that ends in its unit.
    """

    client: str
    version: str
    cases: int
    failures: tuple[str, ...] = ()
    excluded: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> int:
        return self.cases - len(self.failures) - sum(self.excluded.values())

    def ended(self, exit_code: int) -> "Outcome":
        """The same with the process's end: a run without a report is a failure.

        Clients that report a failure exit with another code than 0; so another code without a
        failure, or a run of no test, is a failure.
        """
        wrong = []
        if self.passed + len(self.failures) == 0:
            wrong.append("no test ran")
        if exit_code and not self.failures:
            wrong.append(f"exit code {exit_code} and no failure told")
        return replace(self, cases=self.cases + len(wrong), failures=(*self.failures, *wrong))

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed}


def from_junit(path: Path, *, client: str, version: str, seconds: float, exit_code: int) -> Outcome:
    """Read a JUnit report of pytest or node's test runner; see `Outcome.ended`.

    Raises FileNotFoundError if the run ended before it wrote one.
    """
    cases = list(ET.parse(path).getroot().iter("testcase"))
    failures = []
    excluded: Counter[str] = Counter()
    for case in cases:
        for kind in ("failure", "error"):
            for found in case.findall(kind):
                text = found.get("message") or found.text or ""
                failures.append(f"{case.get('name')}: {text.strip().partition(chr(10))[0][:200]}")
        skipped = case.find("skipped")
        if skipped is not None:
            excluded[(skipped.get("message") or "no reason given").strip()] += 1
    return Outcome(
        client=client,
        version=version,
        cases=len(cases),
        failures=tuple(failures),
        excluded=dict(excluded),
        seconds=seconds,
    ).ended(exit_code)


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print a row per client, then failures and exclusions."""
    console = Console(soft_wrap=True)
    table = Table(title="Conformance")
    for title in ("client", "version"):
        table.add_column(title)
    for title in ("cases", "passed", "failed", "excluded", "s"):
        table.add_column(title, justify="right")
    for each in outcomes:
        numbers = (each.cases, each.passed, len(each.failures), sum(each.excluded.values()))
        shown = (f"{number:,}" for number in numbers)
        table.add_row(each.client, each.version, *shown, f"{each.seconds:.0f}")
    console.print(table)
    for each in outcomes:
        for name, value in each.figures.items():
            console.print(f"{each.client}: {name} {value:,.4g}", markup=False)
        for reason, count in each.excluded.items():
            console.print(f"{each.client}: excluded {count}: {reason}", markup=False)
        for line in each.failures:
            console.print(f"{each.client}: FAILED {line}", markup=False)
