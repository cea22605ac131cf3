"""Rates that a real Prometheus answers with, and one line for whatever else it may say."""

import http.server
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from emulator.errors import ConfigError
from serving.analysis.day.prometheus_rates import RangeQuery, prometheus_trace
from tests.e2e.server_process import HOST, free_port
from tests.prometheus_server import DEPLOYED, PrometheusServer

DAY = datetime(2024, 5, 10, tzinfo=UTC).timestamp()
HOUR_S = 3_600.0
TWO_SERIES = " or ".join(f'label_replace(vector(1), "a", "{name}", "", "")' for name in "xy")
NO_SAMPLES = "no sample from 2024-05-10T00:00:00+0000 to 2024-05-11T00:00:00+0000 by 3600 s"


def query(url: str, expression: str, *, step_s: float = HOUR_S, hours: float = 24) -> RangeQuery:
    return RangeQuery(
        url=url,
        expression=expression,
        begin_unix_s=DAY,
        end_unix_s=DAY + hours * HOUR_S,
        step_s=step_s,
    )


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Scrapes nothing: expressions of time alone have values at any time."""
    folder = tmp_path_factory.mktemp("prometheus")
    with PrometheusServer(DEPLOYED, targets=[], folder=folder) as server:
        yield server.url


@pytest.mark.process
def test_a_sample_stands_for_the_step_before_it(prometheus: str) -> None:
    trace = prometheus_trace(query(f"{prometheus}/", "10 + hour()"))
    assert trace.begins == datetime(2024, 5, 10, tzinfo=UTC)
    assert trace.length_s == 24 * HOUR_S
    # At 01:00, the end of the first step, hour() is 1; at the end of the day 0 again.
    middles_s = np.arange(24) * HOUR_S + HOUR_S / 2
    assert trace.rates_at(middles_s).tolist() == [*range(11, 34), 10]
    assert trace.source == (
        f"10 + hour() of {prometheus}/, from 2024-05-10T00:00:00+0000 to 2024-05-11T00:00:00+0000 "
        "by 3600 s: 24 hours from 2024-05-10 00:00 UTC"
    )


@pytest.mark.process
def test_samples_that_are_missing_are_told(prometheus: str) -> None:
    trace = prometheus_trace(query(prometheus, "hour() != 7"))
    assert "24 hours, 1 of them missing" in trace.source


@pytest.mark.process
@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("nothing_has_this_name", f"one series, as of sum(...), not {NO_SAMPLES}"),
        (TWO_SERIES, 'not 2 series: {a="x"}, {a="y"}'),
        ("sum(", "one that Prometheus answers: 1:5: parse error: unclosed left parenthesis"),
        ("vector(0) / 0", "rates; at 2024-05-10T01:00:00+0000: the rate nan is not in 0 to 1e+12"),
        ("vector(1) / 0", "rates; at 2024-05-10T01:00:00+0000: the rate inf is not in 0 to 1e+12"),
        ("hour() - 5", "rates; at 2024-05-10T01:00:00+0000: the rate -4 is not in 0 to 1e+12"),
        ("1e300", "rates; at 2024-05-10T01:00:00+0000: the rate 1e+300 is not in 0 to 1e+12"),
        ("hour() < 12", "rates; at 2024-05-11T00:00:00+0000: 12 steps of 3600 s are"),
        ("vector(0)", "some requests"),
    ],
)
def test_an_answer_that_is_not_one_series_of_rates_is_refused(
    prometheus: str, expression: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        prometheus_trace(query(prometheus, expression))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.process
def test_prometheus_itself_says_when_steps_are_too_many(prometheus: str) -> None:
    with pytest.raises(ConfigError, match="exceeded maximum resolution of 11,000 points"):
        prometheus_trace(query(prometheus, "1", step_s=1.0))


class OtherServer(http.server.BaseHTTPRequestHandler):
    """Answers with the status of its path, and no JSON."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.end_headers()
        self.wfile.write(b"<html>\nnot here</html>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base
        pass


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    with http.server.ThreadingHTTPServer((HOST, 0), OtherServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("status", [200, 401, 404, 502])
def test_another_server_is_named_with_its_status(other: str, status: int) -> None:
    with pytest.raises(ConfigError) as caught:
        prometheus_trace(query(f"{other}/{status}", "1"))
    assert str(caught.value) == (
        f"from-prometheus={other}/{status}: expected a Prometheus that answers (it answers "
        f"{status} and not as Prometheus)"
    )


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"from-prometheus=.*Connection refused"):
        prometheus_trace(query(f"http://{HOST}:{free_port()}", "1"))


@pytest.mark.parametrize("url", ["127.0.0.1:9090", "ftp://host", "http://", "file:///etc/passwd"])
def test_an_address_is_http(url: str) -> None:
    with pytest.raises(ConfigError, match="from-prometheus"):
        query(url, "1")


def test_a_query_has_two_steps_since_1970() -> None:
    with pytest.raises(ConfigError, match=r"from=2024-05-10T00:00:00\+0000: expected two steps"):
        query("http://host", "1", hours=1.9)
    with pytest.raises(ConfigError, match="from=-1 s"):
        RangeQuery(url="http://h", expression="1", begin_unix_s=-1, end_unix_s=9, step_s=1)
    berlin = ZoneInfo("Europe/Berlin")
    asked = RangeQuery(
        url="http://h", expression="1", begin_unix_s=0, end_unix_s=9, step_s=1, zone=berlin
    )
    assert asked.span == "from 1970-01-01T01:00:00+0100 to 1970-01-01T01:00:09+0100 by 1 s"
