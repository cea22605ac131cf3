"""Every query of every dashboard has an answer: ours, and vLLM's own, of a real Prometheus.

It scrapes the shared live server, under load; a chip was slow and was healed, and two chips have
spent a night training.
"""

import functools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from emulator.specs.fault import Fault, FaultKind
from serving.server.control.control_client import ControlClient
from serving.telemetry.families.family import Family
from serving.telemetry.families.neuron import NEURON
from serving.wire import control_call
from serving.wire.day_night_state import DayNightState
from tests.deploy.grafana.dashboard_files import (
    PATHS,
    Asked,
    asked,
    events,
    panels,
    read,
    variables,
)
from tests.deploy.grafana.template import Value, filled
from tests.deploy.grafana.vllm_dashboards import kept
from tests.e2e.server_answers import control as control_of
from tests.e2e.server_process import ServerProcess
from tests.live_server import CHIPS, MODEL, Load
from tests.prometheus_server import PrometheusServer

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

LENT_GROUP = 1
LONG_TOKENS = 200  # four seconds of the wall at least: a millisecond each, dilated by twenty
SLOW_CHIP = 0
NIGHT_WALL_S = 400.0  # a job and four chips, on two cores that do other things too
KEPT = kept()["files"]
# What the vendor's dashboard of neuron-monitor does with its families, in queries of our own: it
# picks and groups by these labels, and shows these shares of a whole.
BY_VENDOR = (
    *("instance_info", "system_vcpu_count", "system_memory_used_bytes"),
    "system_memory_used_bytes / system_memory_total_bytes",
    "sum(system_vcpu_usage_ratio) by (instance_id)",
    "max(system_vcpu_usage_ratio) by (usage_type)",
    "max(neuron_runtime_vcpu_usage_ratio) by (usage_type)",
    "neuroncore_utilization_ratio > 0",
    "max(neuroncore_utilization_ratio) by (neuroncore)",
    "max(execution_latency_seconds) by (percentile)",
    "sum(neuron_runtime_memory_used_bytes) by (instance_id, memory_location)",
    'rate(execution_status_total{status_type="completed"}[10s]) > 0',
    'rate(execution_status_total{status_type!="completed"}[10s]) == 0',
)
NIGHTLY = "day-night"
BY_DAY = [path for path in PATHS if path.stem != NIGHTLY]
POLL_S = 0.3
STEP_S = 2.0
ROUNDING = 1e-9
WINDOW = "10s"  # ten scrapes; Grafana asks for four at least


class Lit:
    """A Prometheus that has seen everything that the dashboards show, from `begin_unix_s` on."""

    def __init__(self, prometheus: PrometheusServer, begin_unix_s: float) -> None:
        self._prometheus = prometheus
        self._begin_unix_s = begin_unix_s

    def chosen(self, dashboard: Any) -> dict[str, Value]:
        """Each variable as it stands when the page is opened: all, or the first."""
        values: dict[str, Value] = self.built_in()
        for name, variable in variables(dashboard).items():
            if variable["type"] == "query":
                offered = self.offered(filled(variable["query"]["query"], values))
                assert offered, f"nothing to choose for {name}"
                values[name] = variable["allValue"] if variable["includeAll"] else offered[0]
        return values

    def built_in(self) -> dict[str, Value]:
        span_s = math.ceil(time.time() - self._begin_unix_s)
        return {"__rate_interval": WINDOW, "__interval": WINDOW, "__range": f"{span_s}s"}

    def offered(self, query: str) -> list[str]:
        """What `label_values(series, label)` or `label_values(label)` finds."""
        found = re.fullmatch(r"label_values\((?:(?P<match>.*),\s*)?(?P<label>\w+)\)", query)
        assert found, query
        match = found["match"] or f'{{{found["label"]}!=""}}'
        return sorted(self._prometheus.label_values(found["label"], match=match))

    def unanswered(self, queries: list[Asked], values: Mapping[str, Value]) -> list[str]:
        """Those without a single number, once scrapes had time to bring some."""
        empty: list[Asked] = queries

        def all_answered() -> bool:
            nonlocal empty
            empty = [each for each in empty if not self.has_answer(each, values)]
            return not empty

        try:
            self._prometheus.wait_until(all_answered, "answers", timeout_s=20.0)
        except AssertionError:
            return [f"{each.panel}: {filled(each.expression, values)}" for each in empty]
        return []

    def has_answer(self, query: Asked, values: Mapping[str, Value]) -> bool:
        """Whether at least one number comes back."""
        return bool(self.numbers(query, values))

    def numbers(self, query: Asked, values: Mapping[str, Value]) -> list[float]:
        """What comes back, but for what is no number, or infinite."""
        expression = filled(query.expression, values)
        if query.now:
            found = [each.value for each in self._prometheus.query(expression)]
        else:
            series = self._prometheus.query_range(
                expression, begin_unix_s=self._begin_unix_s, end_unix_s=time.time(), step_s=STEP_S
            )
            found = [value for each in series for _, value in each.points]
        return [value for value in found if math.isfinite(value)]


def within(found: list[float], least: float, most: float) -> bool:
    """Whether all are; rates of two counters that one scrape read may differ in the last digits."""
    return all(least - ROUNDING <= each <= most + ROUNDING for each in found)


@pytest.fixture(scope="module")
def lit(live_prometheus: PrometheusServer, live_server: ServerProcess) -> Iterator[Lit]:
    begin_unix_s = time.time()
    with control_of(live_server, timeout_s=60.0) as control:
        one_refused(live_server, control)
        with Load(live_server.url):
            slow_and_healed(live_prometheus, control)
            yield Lit(live_prometheus, begin_unix_s)


@pytest.fixture(scope="module")
def after_a_night(live_server: ServerProcess, live_prometheus: PrometheusServer, lit: Lit) -> Lit:
    with control_of(live_server, timeout_s=60.0) as control:
        night(live_server, live_prometheus, control)
    return lit


def one_refused(server: ServerProcess, control: ControlClient) -> None:
    """Ask a server that takes nothing for the moment."""
    control.call(control_call.DRAIN_ENGINE, reason="a request is to be refused")
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
    refused = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60.0)
    control.call(control_call.UNDRAIN_ENGINE)
    assert refused.status_code == httpx.codes.SERVICE_UNAVAILABLE


def slow_and_healed(prometheus: PrometheusServer, control: ControlClient) -> None:
    """Let a chip be slow for some scrapes."""
    control.call(
        control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.SLOW_CHIP, chip=SLOW_CHIP, factor=2.0)
    )
    try:
        prometheus.wait_scrapes()
    finally:
        control.call(control_call.HEAL, chip=SLOW_CHIP)


def night(server: ServerProcess, prometheus: PrometheusServer, control: ControlClient) -> None:
    """Let one group of chips train until Prometheus knows a loss and tokens, and come back.

    Each rank has a long answer to give when the group is asked for: draining it takes seconds.
    """
    with ThreadPoolExecutor(CHIPS) as pool:
        answers = [pool.submit(long_answer, server) for _ in range(CHIPS)]
        prometheus.wait_until(lambda: all_ranks_run(control), "a request on each rank")
        control.call(control_call.SET_PHASE, group=LENT_GROUP, phase="training")
        try:
            for told in (
                "ultraserve_handover_age_seconds",
                "ultraserve_training_loss",
                f"rate(ultraserve_training_tokens_total[{WINDOW}]) > 0",  # of this night
            ):
                is_known = functools.partial(known, prometheus, told)
                prometheus.wait_until(is_known, told, timeout_s=NIGHT_WALL_S)
        finally:
            control.call(control_call.SET_PHASE, group=LENT_GROUP, phase="serving")
            wait(server, control, lambda state: state.groups[LENT_GROUP].phase == "serving")
        assert {answer.result() for answer in answers} == {httpx.codes.OK}


def known(prometheus: PrometheusServer, expression: str) -> bool:
    return bool(prometheus.query(expression))


def long_answer(server: ServerProcess) -> int:
    """The status of a request for many tokens."""
    body = {"model": MODEL, "prompt": [7] * 8, "max_tokens": LONG_TOKENS, "ignore_eos": True}
    url = f"{server.url}/v1/completions"
    return httpx.post(url, json=body, timeout=NIGHT_WALL_S).status_code


def all_ranks_run(control: ControlClient) -> bool:
    return all(rank.requests_running for rank in control.call(control_call.GET_STATE).ranks)


def wait(
    server: ServerProcess, control: ControlClient, condition: Callable[[DayNightState], bool]
) -> None:
    """Wait until `condition` holds."""
    end_s = time.monotonic() + NIGHT_WALL_S
    while not condition(state := control.call(control_call.GET_DAY_NIGHT)):
        assert time.monotonic() < end_s, f"{state}\n{server.log()[-5000:]}"
        time.sleep(POLL_S)  # polls another process


@pytest.mark.parametrize("path", BY_DAY, ids=lambda path: path.stem)
def test_every_query_of_our_dashboards_has_an_answer(path: Path, lit: Lit) -> None:
    dashboard = read(path)

    assert lit.unanswered(list(asked(dashboard)), lit.chosen(dashboard)) == []


@pytest.mark.parametrize("path", BY_DAY, ids=lambda path: path.stem)
def test_a_share_is_never_below_none_or_above_all(path: Path, lit: Lit) -> None:
    dashboard = read(path)
    values = lit.chosen(dashboard)
    shares = [
        Asked(panel=panel["title"], expression=target["expr"])
        for panel in panels(dashboard)
        if panel["fieldConfig"]["defaults"]["unit"] == "percentunit"
        for target in panel["targets"]
    ]

    found = {each.panel: lit.numbers(each, values) for each in shares}

    assert shares
    assert {name: seen for name, seen in found.items() if not within(seen, 0.0, 1.0)} == {}


@pytest.mark.parametrize("name", KEPT, ids=lambda name: Path(name).stem)
def test_every_query_of_vllms_own_dashboards_has_an_answer(name: str, lit: Lit) -> None:
    found = KEPT[name]
    model = {"model_name": MODEL, "Deployment_id": MODEL, "MODEL": MODEL}
    # Labels that Kubernetes gives a scraped pod. Here is none: an empty value selects just that.
    pod = {"NS": "", "SVC": ""}
    # What always answers would answer for us.
    queries = [
        Asked(
            panel=each["panel"],
            expression=re.sub(r"\s+or vector\(0\)", "", each["expression"]),
        )
        for each in found["queries"]
    ]

    for variable in found["variables"]:
        assert MODEL in lit.offered(variable)
    assert lit.unanswered(queries, lit.built_in() | model | pod) == []


@pytest.mark.parametrize("expression", BY_VENDOR)
def test_what_the_vendors_dashboard_picks_and_groups_by_is_there(expression: str, lit: Lit) -> None:
    assert lit.unanswered([Asked(panel="vendor", expression=expression)], {}) == []


@pytest.mark.parametrize("family", NEURON, ids=lambda family: family.name)
def test_every_family_of_the_vendors_has_an_answer(family: Family, lit: Lit) -> None:
    expression = f"avg by ({', '.join(family.labels)}) ({family.sample})"

    assert lit.unanswered([Asked(panel=family.name, expression=expression)], {}) == []


def test_every_query_about_the_night_has_an_answer(after_a_night: Lit) -> None:
    (path,) = set(PATHS) - set(BY_DAY)
    dashboard = read(path)
    values = after_a_night.chosen(dashboard)

    assert after_a_night.unanswered(list(asked(dashboard)), values) == []


def test_every_event_is_drawn(after_a_night: Lit) -> None:
    dashboard = read(PATHS[0])
    queries = [Asked(panel=each["name"], expression=each["expr"]) for each in events(dashboard)]

    assert after_a_night.unanswered(queries, after_a_night.chosen(dashboard)) == []


def test_the_vendors_sum_of_cpu_use_leaves_idle_time_out(lit: Lit) -> None:
    # Its dashboard shows this sum as utilisation: with idle time it would always be all.
    values = lit.built_in()
    kinds = lit.offered("label_values(system_vcpu_usage_ratio, usage_type)")
    in_use = "sum by (instance) (system_vcpu_usage_ratio)"

    assert kinds == ["system", "user"]
    assert within(lit.numbers(Asked(panel="CPU", expression=in_use), values), 0.0, 1.0)
