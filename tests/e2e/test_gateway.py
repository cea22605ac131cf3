"""Two engines behind the public gateway `smg`, over gRPC: deploy/gateway says how, this that it is.

Two partitions of one UltraServer, and two UltraServers. Each starts two engines and a gateway, so
the file is slow, and it needs a gateway: `make gateway-deps` installs it.
"""

import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from emulator.power.system_power import SystemPower
from emulator.specs.systems import system_by_name
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient
from serving.settings import Settings
from serving.wire import control_call
from serving.wire.power_report import MachinePower
from tests.e2e.gateway_load import ROUTED, asking
from tests.e2e.gateway_process import (
    KEY,
    GatewayProcess,
    find_gateway,
    gateway,
)
from tests.e2e.server_process import HOST, ULTRASERVE, ServerProcess, free_port, started
from tests.e2e.tray import CONTEXT_TOKENS, DILATION, MODEL

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_gateway() is None, reason="needs smg (make gateway-deps)"),
]

SERVED = "small-moe"
LAYOUTS = {
    "two partitions of one UltraServer": (("0", "0-3"), ("0", "4-7")),
    "two UltraServers": (("a", "0-3"), ("b", "0-3")),
}
"""By engine: the UltraServer, and its cores (four logical ones are a chip)."""

NOTICE_S_MAX = 10.0
"""A gateway that asks every second knows of a closed server by then."""

SIGNAL_S_MAX = 1.0
"""A process has met its signal by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One of the two, with its port for the gateway."""

    server: ServerProcess
    grpc_port: int
    ultraserver: str
    runtime: Path

    @property
    def url(self) -> str:
        """As the gateway is told of it."""
        return f"grpc://{HOST}:{self.grpc_port}"

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        page = httpx.get(f"{self.server.url}/metrics", trust_env=False).text
        lines = [line for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def control(self) -> ControlClient:
        """Its control service."""
        path = self.runtime / "ultraserve" / f"control-{self.server.control_port}.key"
        address = ControlAddress(port=self.server.control_port)
        return ControlClient(address, 30.0, key=path.read_text().strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Two engines and the gateway before them."""

    engines: tuple[Engine, Engine]
    gateway: GatewayProcess

    @property
    def urls(self) -> list[str]:
        """Of both engines."""
        return [engine.url for engine in self.engines]

    def engine_at(self, url: str) -> Engine:
        """The engine that the gateway calls so."""
        return next(engine for engine in self.engines if engine.url == url)


@pytest.fixture(scope="module", params=LAYOUTS)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    # One user's claims: without it each server would have a temporary folder of its own for them.
    runtime = tmp_path_factory.mktemp("run")
    with ExitStack() as stack:
        engines = []
        for ultraserver, cores in LAYOUTS[request.param]:
            grpc_port = free_port()
            server = stack.enter_context(
                started(
                    ULTRASERVE,
                    *("--model", MODEL, "--weights", "none", "--clock", f"dilated:{DILATION}"),
                    *("--max-model-len", str(CONTEXT_TOKENS), "--ultraserver", ultraserver),
                    *("--grpc-port", str(grpc_port), "--served-model-name", SERVED),
                    environment={
                        "NEURON_RT_VISIBLE_CORES": cores,
                        "XDG_RUNTIME_DIR": str(runtime),
                    },
                )
            )
            engines.append(
                Engine(server=server, grpc_port=grpc_port, ultraserver=ultraserver, runtime=runtime)
            )
        for engine in engines:
            engine.server.wait_ready()
        urls = [engine.url for engine in engines]
        before = stack.enter_context(gateway(urls))
        before.wait_healthy(*urls)
        yield Site(engines=(engines[0], engines[1]), gateway=before)


@pytest.fixture
def client(site: Site) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{site.gateway.url}/v1", api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


def test_both_engines_say_which_ultraserver_they_are_of(site: Site) -> None:
    for engine in site.engines:
        page = httpx.get(f"{engine.server.url}/metrics", trust_env=False).text
        (info,) = (line for line in page.splitlines() if line.startswith("ultraserve_info{"))
        assert f'ultraserver="{engine.ultraserver}"' in info


def test_partitions_share_their_ultraserver_s_power_and_another_ultraserver_has_its_own(
    site: Site,
) -> None:
    power: dict[str, list[MachinePower]] = defaultdict(list)
    places: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for engine in site.engines:
        with engine.control() as control:
            chips = control.call(control_call.GET_STATE).chips
            power[engine.ultraserver].append(control.call(control_call.GET_POWER))
        places[engine.ultraserver] += [(chip.rack, chip.tray, chip.position) for chip in chips]

    given_watts = SystemPower(system_by_name(Settings().system)).provisioned_watts
    for ultraserver, reports in power.items():
        served = places[ultraserver]
        assert len(set(served)) == len(served) == sum(len(each.chips) for each in reports)
        assert sum(each.provisioned_watts for each in reports) == pytest.approx(
            given_watts(len(served))
        )
        assert all(0 < each.it_watts <= each.provisioned_watts for each in reports)
    first = (0, 0, 0)
    assert sorted(places.values()) in ([[first, (0, 0, 1)]], [[first], [first]])


def test_prompts_with_one_beginning_go_to_the_engine_that_has_it(
    site: Site, client: OpenAI
) -> None:
    hits = [engine.metric("vllm:prefix_cache_hits_total") for engine in site.engines]
    told = Counter[str]()
    engines_of: dict[int, set[str]] = {}
    for number in range(24):
        family = number % 6
        beginning = f"Of family {family}: " + " ".join(f"{family}.{word}" for word in range(80))
        raw = client.chat.completions.with_raw_response.create(
            model=SERVED,
            messages=[{"role": "user", "content": f"{beginning} Number {number}?"}],
            max_tokens=4,
        )
        usage = raw.parse().usage
        engine = raw.headers[ROUTED]
        engines_of.setdefault(family, set()).add(engine)
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached = usage.prompt_tokens_details.cached_tokens or 0
        told[engine] += cached
        if number >= 6:
            assert cached > 0.8 * usage.prompt_tokens, f"family {family} met no prefix"

    assert {len(engines) for engines in engines_of.values()} == {1}
    assert set().union(*engines_of.values()) == set(site.urls), "one engine had nothing to do"
    for engine, before in zip(site.engines, hits, strict=True):
        assert engine.metric("vllm:prefix_cache_hits_total") - before == told[engine.url]


def test_while_an_engine_s_door_is_closed_the_other_has_everything_and_nothing_is_lost(
    site: Site,
) -> None:
    draining, other = site.engines
    with asking(site.gateway.url, model=SERVED, users=8) as load, draining.control() as control:
        load.wait_for(site.urls, since_s=0.0)
        control.call(control_call.DRAIN_ENGINE)
        closed_s = time.monotonic()
        site.gateway.wait_healthy(other.url)
        noticed_s = time.monotonic() - closed_s
        load.wait_for([other.url], since_s=closed_s, answers=8)
        inside = control.call(control_call.GET_ADMISSION).in_flight
        opened_s = time.monotonic()
        control.call(control_call.UNDRAIN_ENGINE)
        site.gateway.wait_healthy(*site.urls)
        load.wait_for(site.urls, since_s=opened_s)

    print(f"the gateway knew after {noticed_s:.1f} s; {len(load.answers)} answers")
    assert [each.failure for each in load.answers if each.failure] == []
    assert noticed_s < NOTICE_S_MAX
    assert inside == 0
    meanwhile = [each for each in load.since(closed_s) if each.ended_s < opened_s]
    assert {each.engine for each in meanwhile} == {other.url}, "a closed server let requests in"


def test_an_engine_that_is_told_to_end_answers_what_it_has_and_the_other_goes_on(
    site: Site,
) -> None:
    other, ending = site.engines
    with asking(site.gateway.url, model=SERVED, users=8) as load:
        load.wait_for(site.urls, since_s=0.0)
        told_s = time.monotonic()
        ending.server.signal(signal.SIGTERM)
        code = ending.server.wait_end()
        load.wait_for([other.url], since_s=time.monotonic(), answers=8)

    late = load.since(told_s + SIGNAL_S_MAX)
    assert code == 0
    assert [each.failure for each in load.answers if each.failure] == []
    assert {each.engine for each in late} == {other.url}
