import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from loadgen.clients.server_clock import parse_metrics, read_server
from loadgen.clients.server_session import open_session
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


def test_a_virtual_clock_is_refused() -> None:
    with (
        KnownServer(dilation=0.0).serving() as server,
        pytest.raises(ServerError, match="virtual"),
    ):
        read(server.url)
