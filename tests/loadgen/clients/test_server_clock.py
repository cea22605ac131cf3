import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from loadgen.clients import question
from loadgen.clients.question import open_session
from loadgen.clients.server_clock import parse_metrics, read_server
from loadgen.errors import ServerError
from loadgen.records.server_reading import ServerReading
from tests.loadgen.known_server import KnownServer

PAGE = """\
# HELP vllm:e2e_request_latency_seconds Latency.
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le="0.3",model_name="a b"} 0.0
broken line that is not ours {
# HELP ultraserve_clock_dilation Wall seconds per emulated second.
# TYPE ultraserve_clock_dilation gauge
ultraserve_clock_dilation 12.5
# TYPE ultraserve_info gauge
ultraserve_info{chips="4",clock="auto",routing="uniform",system="s",time_model="t",weights="w"} 1.0
# TYPE ultraserve_emulated_seconds_total counter
ultraserve_emulated_seconds_total 3.5
ultraserve_emulated_seconds_created 1.7e+09
# TYPE ultraserve_lag_seconds_total counter
ultraserve_lag_seconds_total 0.25
# TYPE ultraserve_chip_energy_joules_total counter
ultraserve_chip_energy_joules_total 1000.0
# TYPE ultraserve_facility_energy_joules_total counter
ultraserve_facility_energy_joules_total 1500.0
# TYPE ultraserve_provisioned_watts gauge
ultraserve_provisioned_watts 5200.0
# TYPE ultraserve_chips gauge
ultraserve_chips 4.0
"""


def read(url: str) -> ServerReading:
    async def ask() -> ServerReading:
        async with open_session() as session:
            return await read_server(session, url)

    return asyncio.run(ask())


def test_a_page_gives_every_figure_and_what_is_emulated() -> None:
    assert parse_metrics(PAGE) == ServerReading(
        dilation=12.5,
        emulated_s=3.5,
        lag_s=0.25,
        chip_joules=1000.0,
        facility_joules=1500.0,
        provisioned_watts=5200.0,
        chips=4.0,
        info={
            "chips": "4",
            "clock": "auto",
            "routing": "uniform",
            "system": "s",
            "time_model": "t",
            "weights": "w",
        },
    )


def test_engines_behind_one_address_have_their_energy_and_chips_together() -> None:
    page = "".join(
        f'# TYPE {name} {kind}\n{name}{{replica="0"}} {first}\n{name}{{replica="1"}} {second}\n'
        for name, kind, first, second in (
            ("ultraserve_clock_dilation", "gauge", 20.0, 20.0),
            ("ultraserve_emulated_seconds_total", "counter", 9.0, 4.0),
            ("ultraserve_chip_energy_joules_total", "counter", 100.0, 30.0),
            ("ultraserve_facility_energy_joules_total", "counter", 200.0, 50.0),
            ("ultraserve_provisioned_watts", "gauge", 10.0, 10.0),
            ("ultraserve_chips", "gauge", 4.0, 4.0),
        )
    )

    assert parse_metrics(page) == ServerReading(
        dilation=20.0,
        emulated_s=9.0,
        chip_joules=130.0,
        facility_joules=250.0,
        provisioned_watts=20.0,
        chips=8.0,
    )


def test_what_the_prometheus_client_writes_is_read() -> None:
    registry = CollectorRegistry()
    Gauge("ultraserve_clock_dilation", "Wall per emulated.", registry=registry).set(2)
    Counter("ultraserve_emulated_seconds", "Emulated.", registry=registry).inc(8)

    reading = parse_metrics(generate_latest(registry).decode())

    assert (reading.dilation, reading.emulated_s, reading.chips) == (2.0, 8.0, None)


def test_a_page_without_our_metrics_is_an_empty_reading() -> None:
    assert parse_metrics('vllm:num_requests_running{engine="0"} 3.0\n') == ServerReading()
    assert parse_metrics("") == ServerReading()


def test_a_value_that_is_not_known_counts_as_absent() -> None:
    assert parse_metrics("ultraserve_chips NaN\n").chips is None


def test_vllm_s_totals_are_summed_over_its_engines() -> None:
    page = """\
# HELP vllm:request_queue_time_seconds Time in the queue.
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3"} 3.0
vllm:request_queue_time_seconds_count{engine="0"} 3.0
vllm:request_queue_time_seconds_sum{engine="0"} 0.5
vllm:request_queue_time_seconds_count{engine="1"} 1.0
vllm:request_queue_time_seconds_sum{engine="1"} 0.25
vllm:request_queue_time_seconds_created{engine="1"} 1.7e+09
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0"} 100.0
vllm:prefix_cache_queries_total{engine="1"} 50.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0"} 40.0
vllm:prefix_cache_hits_created{engine="0"} 1.7e+09
"""

    assert parse_metrics(page) == ServerReading(
        queue_s=0.75, queued_requests=4.0, prefix_queries=150.0, prefix_hits=40.0
    )


def test_a_server_is_read_over_http() -> None:
    with KnownServer(dilation=4.0).serving() as server:
        reading = read(server.url)

    assert (reading.dilation, reading.chips, reading.problem) == (4.0, 4.0, "")
    assert reading.info["time_model"] == "big"


def test_a_server_without_metrics_is_an_answer_and_says_why() -> None:
    with KnownServer().serving() as server:
        assert read(server.url) == ServerReading(problem="status 404")
    assert read(server.url).problem.startswith("cannot be reached")


def test_labels_are_what_a_terminal_only_shows() -> None:
    page = 'ultraserve_info{system="a\x1b[2Jtray"} 1.0\n'

    assert parse_metrics(page).info == {"system": "a[2Jtray"}


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A server that answers everything with these bytes, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def read_of(answer: bytes, *, must_answer: bool) -> ServerReading:
    async def ask() -> ServerReading:
        async with answering(answer) as url, open_session() as session:
            return await read_server(session, url, must_answer=must_answer)

    return asyncio.run(ask())


def ok(page: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page)


NOTHING = b"Content-Length: 0\r\n\r\n"
CUT_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nultraserve_clock_dilation 4\n"


@pytest.mark.parametrize(
    "answer", [b"", CUT_OFF, b"HTTP/1.1 429 Busy\r\n" + NOTHING, b"HTTP/1.1 502 Bad\r\n" + NOTHING]
)
def test_a_page_that_fails_is_an_error_where_it_must_answer(answer: bytes) -> None:
    assert read_of(answer, must_answer=False).problem
    with pytest.raises(ServerError, match="/metrics: "):
        read_of(answer, must_answer=True)


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_a_server_that_has_no_such_page_is_measured_in_wall_time(status: int) -> None:
    answer = b"HTTP/1.1 %d No\r\n" % status + NOTHING

    assert read_of(answer, must_answer=True) == ServerReading(problem=f"status {status}")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (b"ultraserve_chips \xff\n", "not Prometheus text"),
        (b"ultraserve_chips\n", "not Prometheus text"),
        (b'ultraserve_chips{, ="1"} 3\n', "not Prometheus text"),  # an IndexError of the parser
        (b"ultraserve_clock_dilation 1e-300\n", "no clock's"),
        (b"ultraserve_clock_dilation 1e300\n", "no clock's"),
    ],
)
def test_a_page_that_cannot_be_used_is_refused_in_one_line(page: bytes, words: str) -> None:
    with pytest.raises(ServerError, match=words):
        read_of(ok(page), must_answer=False)


def test_a_page_without_an_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "ANSWER_BYTES_MAX", 10)
    assert read_of(ok(b"# " + b"x" * 7 + b"\n"), must_answer=True) == ServerReading()
    with pytest.raises(ServerError, match="more than 10 bytes"):
        read_of(ok(b"# " + b"x" * 8 + b"\n"), must_answer=True)


def test_a_virtual_clock_is_refused() -> None:
    with (
        KnownServer(dilation=0.0).serving() as server,
        pytest.raises(ServerError, match="virtual"),
    ):
        read(server.url)
