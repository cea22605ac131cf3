"""Request rates from a range query of Prometheus's HTTP API.

A sample stands for the step before its time, as `rate(...[5m])` does with a step of 5m.
"""

import http.client
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Final

import msgspec
import numpy as np

from emulator.errors import ConfigError
from loadgen.errors import one_line
from loadgen.workloads.rate_series import RateSeries, SampleError
from serving.analysis.day.day_trace import DayTrace
from serving.analysis.day.day_trace_file import rates_trace

_TIMEOUT_S: Final = 60.0
_ANSWER_BYTES_MAX: Final = 64 * 1024**2
_SHOWN_SERIES: Final = 3
_SHOWN_TEXT: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeQuery:
    """A PromQL expression from one Unix time to another; raises ConfigError.

    `zone` is that of the day's hours.
    """

    url: str
    expression: str
    begin_unix_s: float
    end_unix_s: float
    step_s: float
    zone: tzinfo = UTC

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError("from-prometheus", self.url, "an address like http://127.0.0.1:9090")
        if self.begin_unix_s < 0:
            raise ConfigError("from", f"{self.begin_unix_s:g} s", "a time from 1970 on")
        if self.begin_unix_s + 2 * self.step_s > self.end_unix_s:
            expected = f"two steps of {self.step_s:g} s or more before --to"
            raise ConfigError("from", self.written(self.begin_unix_s), expected)

    def written(self, unix_s: float) -> str:
        """A time in the zone."""
        return f"{datetime.fromtimestamp(unix_s, tz=self.zone):%Y-%m-%dT%H:%M:%S%z}"

    @property
    def span(self) -> str:
        """From when to when, at which steps."""
        begin, end = self.written(self.begin_unix_s), self.written(self.end_unix_s)
        return f"from {begin} to {end} by {self.step_s:g} s"


class RangeSeries(msgspec.Struct, frozen=True):
    """One series of an answer: its labels, and (Unix seconds, value in words)."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class RangeResult(msgspec.Struct, frozen=True):
    """What a query came to."""

    result: list[RangeSeries] = []


class RangeAnswer(msgspec.Struct, frozen=True):
    """Of the API: `error` where it refused."""

    status: str
    error: str = ""
    data: RangeResult = RangeResult()


def prometheus_trace(query: RangeQuery) -> DayTrace:
    """Ask, and take the answer's one series for the demand.

    Raises ConfigError for a server that does not answer, and an answer that is not one series of
    rates.
    """
    found = [each for each in _answer(query).data.result if each.values]
    if len(found) != 1:
        shown = ", ".join(_labels(each) for each in found[:_SHOWN_SERIES])
        more = ", ..." if len(found) > _SHOWN_SERIES else ""
        came = f"{len(found)} series: {shown}{more}" if found else f"no sample {query.span}"
        raise ConfigError("query", query.expression, f"one series, as of sum(...), not {came}")
    times_s, values = zip(*found[0].values, strict=True)
    # A sample's own step ends with it.
    begins_s = np.array(times_s, dtype=np.float64) - query.step_s
    try:
        series = RateSeries.of(begins_s, np.array(values, dtype=np.float64), is_unix=True)
    except SampleError as error:
        at = query.written(times_s[error.number])
        raise ConfigError("query", query.expression, f"rates; at {at}: {error}") from error
    source = f"{query.expression} of {query.url}, {query.span}"
    return rates_trace(series, source=source, zone=query.zone)


def _answer(query: RangeQuery) -> RangeAnswer:
    asked = urllib.parse.urlencode(
        {
            "query": query.expression,
            "start": query.begin_unix_s + query.step_s,
            "end": query.end_unix_s,
            "step": query.step_s,
        }
    )
    url = f"{query.url.rstrip('/')}/api/v1/query_range?{asked}"
    status = 200
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            body = response.read(_ANSWER_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        status = error.code
        body = error.read(_ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise _unanswered(query, str(reason) or type(error).__name__) from error
    if len(body) > _ANSWER_BYTES_MAX:
        raise _unanswered(query, f"its answer is longer than {_ANSWER_BYTES_MAX:,} bytes")
    try:
        answer = msgspec.json.decode(body, type=RangeAnswer)
    except msgspec.DecodeError as error:
        raise _unanswered(query, f"it answers {status} and not as Prometheus") from error
    if answer.status != "success":
        reason = one_line(answer.error)[:_SHOWN_TEXT]
        raise ConfigError("query", query.expression, f"one that Prometheus answers: {reason}")
    return answer


def _unanswered(query: RangeQuery, reason: str) -> ConfigError:
    expected = f"a Prometheus that answers ({one_line(reason)[:_SHOWN_TEXT]})"
    return ConfigError("from-prometheus", query.url, expected)


def _labels(series: RangeSeries) -> str:
    pairs = ", ".join(f'{name}="{value}"' for name, value in series.metric.items())
    return one_line(f"{{{pairs}}}")[:_SHOWN_TEXT]
