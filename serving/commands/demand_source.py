"""Where a day's demand comes from: a file, a built-in day, or a range query of Prometheus."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from emulator.errors import ConfigError
from loadgen.option_values import some_duration_s
from serving.commands.analysis_options import check_absent
from startup.typed_options import option

if TYPE_CHECKING:
    from serving.analysis.day.day_trace import DayTrace

_QUERIED: Final = {
    "query": "query",
    "query_from": "from",
    "query_to": "to",
    "query_step_s": "step",
}
_STEP_S: Final = 300.0
_UNIX_S_MAX: Final = 1e11  # the year 5138
_SPAN: Final = "1d"


@dataclass(frozen=True, kw_only=True)
class DemandSourceOptions:
    """A file or a query, and how it is read."""

    GROUP = "demand"

    trace: str = option(
        "sample",
        "rates (a CSV with any header), nodes by time of day (CSV as DeepSeek's), recorded "
        "requests (Azure 2023 and 2024, BurstGPT, Mooncake, a folder of ServeGen's clients), or "
        "built in: deepseek, sample",
        metavar="FILE",
        one_of="source",
    )
    time_column: str | None = option(
        None,
        "of a CSV of rates: ISO 8601, Unix seconds or milliseconds, or seconds from its begin "
        "(default: the only one)",
        metavar="NAME",
    )
    rate_column: str | None = option(
        None,
        "of a CSV of rates, in any unit, as its highest is scaled by --peak (default: the only "
        "number beside the time)",
        metavar="NAME",
    )
    timezone: str | None = option(
        None,
        "of times that name none, and of the day's hours (default: UTC, of a file as DeepSeek's "
        "China's)",
        metavar="ZONE",
    )
    from_prometheus: str | None = option(
        None, "rates of a range query, as http://127.0.0.1:9090", metavar="URL", one_of="source"
    )
    query: str | None = option(
        None,
        "of Prometheus: an expression with one series, as sum(rate(NAME[5m])); each sample is "
        "taken for the step before it",
        metavar="EXPR",
    )
    query_from: str | None = option(
        None,
        f"ISO 8601, Unix seconds, or how long before --to (default: {_SPAN})",
        "--from",
        metavar="TIME",
    )
    query_to: str | None = option(
        None, "ISO 8601 or Unix seconds (default: now)", "--to", metavar="TIME"
    )
    query_step_s: float | None = option(
        None,
        "between samples (default: 5m)",
        "--step",
        type=some_duration_s,
        metavar="TIME",
    )

    def day_trace(self, *, seed: int) -> DayTrace:
        """The demand; raises UltraServeError or LoadError."""
        from loadgen.workloads.rate_file import RateColumns
        from serving.analysis.day import day_trace_file
        from serving.policy.day_night.schedule import checked_zone

        zone = None if self.timezone is None else ZoneInfo(checked_zone(self.timezone))
        if self.from_prometheus is not None:
            return self._queried(self.from_prometheus, zone or UTC)
        for field, name in _QUERIED.items():
            value = getattr(self, field)
            if value is not None:
                raise ConfigError(name, value, "it beside --from-prometheus")
        columns = RateColumns(time=self.time_column, rate=self.rate_column, zone=zone)
        return day_trace_file.day_trace(self.trace, columns, seed=seed)

    def _queried(self, url: str, zone: tzinfo) -> DayTrace:
        from serving.analysis.day.prometheus_rates import RangeQuery, prometheus_trace

        check_absent(self, ("time_column", "rate_column"), expected="nothing beside a query")
        if self.query is None:
            expected = "an expression as sum(rate(vllm:request_success_total[5m]))"
            raise ConfigError("query", "", expected)
        end_s = time.time() if self.query_to is None else _unix_s("to", self.query_to, zone)
        return prometheus_trace(
            RangeQuery(
                url=url,
                expression=self.query,
                begin_unix_s=_begin_unix_s(self.query_from or _SPAN, end_s, zone),
                end_unix_s=end_s,
                step_s=self.query_step_s or _STEP_S,
                zone=zone,
            )
        )


def _begin_unix_s(text: str, end_s: float, zone: tzinfo) -> float:
    from serving.policy.day_night.options import duration_s

    if text[-1:].isdigit() or "-" in text:
        return _unix_s("from", text, zone)
    return end_s - duration_s(text, field="from")


def _unix_s(name: str, text: str, zone: tzinfo) -> float:
    try:
        if text.isdigit():
            found = float(text)
        else:
            at = datetime.fromisoformat(text)
            found = (at if at.tzinfo else at.replace(tzinfo=zone)).timestamp()
    except ValueError:
        found = -1.0
    if not 0 <= found < _UNIX_S_MAX:
        expected = "a time as 2024-05-10T08:30:00+02:00, or Unix seconds"
        raise ConfigError(name, text, expected)
    return found
