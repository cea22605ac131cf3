"""A real Prometheus scrapes a live engine: every rule has data, and alerts mean what they say."""

from collections.abc import Iterator

import pytest

from emulator.specs.fault import Fault, FaultKind
from serving.server.control.control_client import ControlClient
from serving.wire import control_call
from tests.deploy.prometheus.rule_files import written_rules
from tests.e2e.server_answers import control as control_of
from tests.e2e.server_process import ServerProcess
from tests.live_server import CHIPS, Load
from tests.prometheus_server import PrometheusServer
from tests.promql import metric_names

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RECORDED = {rule.name for rule in written_rules() if not rule.alert}
OF_THE_HOST = {"ClockLag", "SloBurnFast", "SloBurnSlow"}
"""A host that other work keeps from keeping up with the clock raises these, and rightly so."""

OF_OTHERS = {"up", "ultraserve_handover_age_seconds"}
"""Prometheus makes `up`; the other is there only while a group changes hands."""


@pytest.fixture(scope="module")
def control(live_server: ServerProcess) -> Iterator[ControlClient]:
    with control_of(live_server) as client:
        yield client


@pytest.fixture(scope="module")
def load(live_server: ServerProcess) -> Iterator[Load]:
    with Load(live_server.url) as running:
        yield running


def test_every_family_that_a_rule_names_is_on_the_page_once_a_step_has_run(
    live_prometheus: PrometheusServer, load: Load
) -> None:
    live_prometheus.wait_until(lambda: load.answered > 0, "answer")
    live_prometheus.wait_scrapes(1)
    named = {name for rule in written_rules() for name in metric_names(rule.expression)}
    suffixes = ("", "_bucket", "_count")
    samples = {family + end for family in live_prometheus.metadata() for end in suffixes}

    assert named - RECORDED - OF_OTHERS - samples == set()


def test_every_recording_rule_returns_data_while_requests_run(
    live_prometheus: PrometheusServer, load: Load
) -> None:
    def empty() -> set[str]:
        return {name for name in RECORDED if not live_prometheus.query(name)}

    live_prometheus.wait_until(lambda: load.answered > 0, "answer")
    live_prometheus.wait_until(lambda: not empty(), "data of every rule")
    assert {rule.name: rule.error for rule in live_prometheus.rules() if rule.health != "ok"} == {}


def test_what_prometheus_has_lies_between_two_looks_at_the_server_itself(
    live_prometheus: PrometheusServer, control: ControlClient, load: Load
) -> None:
    live_prometheus.wait_until(lambda: load.answered > 0, "answer")
    first = control.call(control_call.GET_HARDWARE)
    live_prometheus.wait_scrapes(1)
    (tokens,) = live_prometheus.query('ultraserve_tokens_total{kind="output"}')
    (joules,) = live_prometheus.query("ultraserve_facility_energy_joules_total")
    (emulated,) = live_prometheus.query("ultraserve_emulated_seconds_total")
    last = control.call(
        control_call.GET_HARDWARE
    )  # or the scrape's own, than which the page may be a step ahead

    def is_after() -> bool:
        nonlocal last
        last = control.call(control_call.GET_HARDWARE)
        return last.emulated_s > emulated.value

    live_prometheus.wait_until(is_after, "a look after the scrape")
    before, after = first.telemetry, last.telemetry
    assert before.output_tokens <= tokens.value <= after.output_tokens
    assert before.facility_joules <= joules.value <= after.facility_joules
    # The page's clock goes on between steps; telemetry's is that of the last one's end.
    assert first.emulated_s <= emulated.value <= last.emulated_s
    assert before.output_tokens < after.output_tokens


def test_shares_are_shares(live_prometheus: PrometheusServer, load: Load) -> None:
    def goodput() -> dict[str, float]:
        found = live_prometheus.query("ultraserve:goodput:ratio_rate1m")
        return {sample.labels["bound"]: sample.value for sample in found}

    live_prometheus.wait_until(lambda: len(goodput()) == 2, "goodput")
    assert 0 <= goodput()["at_least"] <= goodput()["at_most"] <= 1
    usage = live_prometheus.query("ultraserve:hbm_usage:ratio")
    assert len(usage) == CHIPS
    assert all(0 < sample.value < 1 for sample in usage)


def test_no_alert_fires_of_a_healthy_server(live_prometheus: PrometheusServer, load: Load) -> None:
    live_prometheus.wait_scrapes(2)
    firing = live_prometheus.firing()

    late = live_prometheus.query("ultraserve:clock_lag:ratio_rate5m > 0.05")
    assert firing - (OF_THE_HOST if late else set()) == set()


def test_a_lost_chip_is_an_alert_until_it_is_healed(
    live_prometheus: PrometheusServer, control: ControlClient, load: Load
) -> None:
    control.call(control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.LOSE_CHIP, chip=2))
    try:
        live_prometheus.wait_until(lambda: "ChipLost" in live_prometheus.firing(), "alert")
        (alert,) = live_prometheus.query('ALERTS{alertname="ChipLost", alertstate="firing"}')
        assert (alert.labels["chip"], alert.labels["health"]) == ("2", "lost")
    finally:
        control.call(control_call.HEAL, chip=2)
    live_prometheus.wait_until(lambda: "ChipLost" not in live_prometheus.firing(), "its end")
