"""One page of metrics of several servers, in Prometheus' text format. Pure.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/, text-based.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class _FamilyLines:
    headers: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)


class MergedMetrics:
    """Families in the order in which they came first, each with the samples of all pages."""

    def __init__(self) -> None:
        self._families: dict[str, _FamilyLines] = {}

    def add(
        self,
        page: str,
        labels: Mapping[str, str],
        *,
        keeps: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Add a page's samples with `labels`, of the families that `keeps` names."""
        shown = ",".join(f'{name}="{value}"' for name, value in labels.items())
        lines = self._kept("", keeps)
        for line in page.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                lines = self._kept(line.split(" ", 3)[2], keeps)
                if lines is not None and line not in lines.headers and len(lines.headers) < 2:
                    lines.headers.append(line)
            elif line and not line.startswith("#") and lines is not None:
                lines.samples.append(_labelled(line, shown))

    def _kept(self, name: str, keeps: Callable[[str], bool]) -> _FamilyLines | None:
        return self._families.setdefault(name, _FamilyLines()) if keeps(name) else None

    def text(self) -> str:
        """The page."""
        lines = [
            line for each in self._families.values() for line in (*each.headers, *each.samples)
        ]
        return "\n".join((*lines, ""))


def _labelled(sample: str, labels: str) -> str:
    """The sample with more labels, before its own."""
    if not labels:
        return sample
    brace, blank = sample.find("{"), sample.find(" ")
    if brace < 0 or blank < brace:
        return f"{sample[:blank]}{{{labels}}}{sample[blank:]}"
    own = sample[brace + 1 :]
    comma = "" if own.startswith("}") else ","
    return f"{sample[: brace + 1]}{labels}{comma}{own}"
