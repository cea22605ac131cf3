import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from loadgen.clients.openai_http import new_session
from loadgen.errors import ServerError
from loadgen.server_clock import ServerReading, ServerWindow, parse_metrics, read_server
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
        async with new_session() as session:
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


def test_a_window_is_the_growth_of_each_counter() -> None:
    start = ServerReading(
        dilation=2, emulated_s=10, lag_s=1, chip_joules=100, facility_joules=150, chips=4
    )
    end = ServerReading(
        dilation=2, emulated_s=13, lag_s=1, chip_joules=400, facility_joules=600, chips=4
    )
    window = ServerWindow(start=start, end=end)

    assert (window.dilation, window.emulated, window.dilation_changed) == (2, True, False)
    assert (window.emulated_s, window.lag_s) == (3, 0)
    assert (window.chip_joules, window.facility_joules, window.chips) == (300, 450, 4)


def test_a_counter_that_is_missing_or_fell_has_no_growth() -> None:
    before, after = ServerReading(emulated_s=5, lag_s=1), ServerReading(emulated_s=4)
    window = ServerWindow(start=before, end=after)

    assert window.emulated_s is None  # the server was started anew
    assert window.lag_s is None
    assert window.facility_joules is None
    assert (window.dilation, window.emulated) == (1.0, False)


def test_a_clock_that_was_changed_is_noticed() -> None:
    window = ServerWindow(start=ServerReading(dilation=2), end=ServerReading(dilation=4))

    assert window.dilation_changed


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
