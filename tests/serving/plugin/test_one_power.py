"""State, telemetry, power, dashboards and the page of metrics show one clock and one power."""

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY, make_asgi_app
from prometheus_client.parser import text_string_to_metric_families

from emulator.memory.lnc import core_map
from emulator.specs.chips import chip_by_name
from emulator.specs.fault import Fault, FaultKind
from serving.plugin.stat_logger import EmulatedStatLogger
from serving.server.gateway.http.asgi import Message
from serving.server.gateway.http.metrics_page import MetricsPage
from serving.server.gateway.snapshot_poller import SnapshotPoller
from serving.telemetry.host_meter import HostMeter
from serving.telemetry.page.neuron_page import Instance
from serving.wire.control_call import (
    HealRequest,
    LeaseReport,
    PowerReply,
    PowerRequest,
    TelemetryReply,
    TelemetryRequest,
)
from tests.serving.own_metrics import own_metrics
from tests.serving.plugin.engine_config import engine_config
from tests.serving.plugin.leased_requests import drain, note
from tests.serving.plugin.running_engine import Running, lose
from tests.serving.plugin.seen_engine import Seen
from tests.serving.server.gateway.test_snapshot_poller import SlowEngine


def shown(seen: Seen) -> list[tuple[float, float, float]]:
    """Emulated seconds, watts of the chips and of the facility, in every view."""
    state, power, told = seen.state(), seen.ask(PowerRequest()), seen.ask(TelemetryRequest())
    report = seen.look()
    assert isinstance(power, PowerReply)
    assert isinstance(told, TelemetryReply)
    views = (state, power.report, told.telemetry, report.state, report.power, report.telemetry)
    assert sum(chip.watts for chip in state.chips) == pytest.approx(state.chip_watts)
    assert sum(chip.watts for chip in power.report.chips) == pytest.approx(state.chip_watts)
    return [(view.emulated_s, view.chip_watts, view.facility_watts) for view in views]


@pytest.mark.long
def test_every_view_shows_the_same_under_load_and_at_rest() -> None:
    seen = Seen()
    idle_watts = 4 * seen.parts.machine.cost_model.idle_chip_watts
    for _ in range(20):
        seen.step(0, 1, 2, 3)
    (loaded,) = {*shown(seen)}
    assert loaded[1] > idle_watts

    seen.rest(60.0)
    (rested,) = {*shown(seen)}
    assert rested[0] == pytest.approx(loaded[0] + 60.0)
    assert rested[1] == pytest.approx(idle_watts)
    assert rested[2] < loaded[2]


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [FaultKind.LOSE_CHIP, FaultKind.HANG_CHIP, FaultKind.FAIL_STACK, FaultKind.SLOW_CHIP]
)
def test_every_view_shows_the_same_whatever_a_chip_has_and_while_a_job_trains(
    kind: FaultKind,
) -> None:
    seen = Seen(spares=1)
    for _ in range(3):
        seen.step(0, 1, 2, 3)
    drain(seen, 3)
    seen.step(0, 1, 2)
    said = seen.ask(note(1, tokens=1, joules=1.0, watts=777.0, emulated_s=1.0))
    assert isinstance(said, LeaseReport)
    (training,) = {*shown(seen)}
    seen.inject(Fault(kind=kind, chip=1, factor=3.0, stack=0))
    shown_now = {*shown(seen)}
    seen.rest(60.0)

    assert training[1] > 777.0
    assert len(shown_now) == 1
    assert len({*shown(seen)}) == 1


def test_energy_of_a_watch_counts_the_rest_too() -> None:
    seen = Seen()
    seen.step(0)
    before = seen.ask(TelemetryRequest())
    seen.rest(10.0)
    after = seen.ask(TelemetryRequest())

    assert isinstance(before, TelemetryReply)
    assert isinstance(after, TelemetryReply)
    idle_watts = 4 * seen.parts.machine.cost_model.idle_chip_watts
    drawn = after.telemetry.chip_joules - before.telemetry.chip_joules
    assert drawn == pytest.approx(10.0 * idle_watts)


@pytest.mark.long
def test_a_lost_chip_draws_no_watts_and_no_joules_until_it_is_healed() -> None:
    seen = Seen()
    idle_watts = seen.parts.machine.cost_model.idle_chip_watts
    for _ in range(3):
        seen.step(0, 1, 2, 3)
    seen.rest(2.0)
    reports = [seen.look()]
    seen.inject(lose(3))
    for _ in range(3):
        seen.step(0, 1, 2)
        seen.rest(10.0)
        reports.append(seen.look())
    before, after = reports[1], reports[3]
    passed_s = after.emulated_s - before.emulated_s

    assert after.meters[3].joules == pytest.approx(reports[0].meters[3].joules)
    assert after.meters[0].joules > before.meters[0].joules + idle_watts * passed_s
    drawn = after.telemetry.chip_joules - before.telemetry.chip_joules
    each = [
        ended.joules - begun.joules
        for begun, ended in zip(before.meters, after.meters, strict=True)
    ]
    assert drawn == pytest.approx(sum(each))
    assert drawn < 3.01 * idle_watts * passed_s
    for report in reports:
        assert report.telemetry.chip_joules == pytest.approx(sum(m.joules for m in report.meters))
    facility = [report.telemetry.facility_joules for report in reports]
    assert facility == sorted(facility)

    seen.ask(HealRequest())
    seen.rest(10.0)
    back = seen.look()
    assert back.telemetry.chip_joules == pytest.approx(sum(m.joules for m in back.meters))
    assert back.meters[3].joules >= after.meters[3].joules + idle_watts * 10.0 * 0.99


@pytest.mark.long
def test_a_chip_s_watts_are_the_mean_of_the_window_and_idle_beside_it() -> None:
    running = Running(spares=1)
    idle = running.parts.machine.cost_model.idle_chip_watts
    assert {chip.watts for chip in running.state().chips} == {idle}
    report = running.step(0)
    state = running.state()

    assert state.chip_watts == pytest.approx(report.snapshot.chip_joules / report.end_s)
    assert state.chips[0].watts > idle
    assert state.chips[4].watts == idle


@pytest.fixture
def logger() -> Iterator[EmulatedStatLogger]:
    config = engine_config(additional_config={"ultraserve": {"chips": 4, "clock": "real"}})
    config.cache_config.num_gpu_blocks = 100
    with own_metrics():
        yield EmulatedStatLogger(config, [0])


class BusyEngine(SlowEngine):
    """An engine under load: after each answer come three steps."""

    def __init__(self) -> None:
        super().__init__()
        self.works = True

    async def collective_rpc(self, *args: object, **more: object) -> list[object]:
        answer = await super().collective_rpc(*args, **more)  # type: ignore[arg-type]
        if self.works:
            for _ in range(3):
                self.seen.step(0, 1, 2, 3)
        return answer


def scraped(page: MetricsPage) -> dict[str, float]:
    """The power figures of one scrape."""
    sent: list[Message] = []

    async def scrape() -> None:
        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "path": "/metrics", "method": "GET", "headers": []}
        await page(scope, receive, send)

    asyncio.run(scrape())
    text = b"".join(message.get("body", b"") for message in sent).decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    parts = [s.value for s in samples if s.name == "ultraserve_facility_part_watts"]
    chips = [s.value for s in samples if s.name == "ultraserve_chip_power_watts"]
    named = {s.name: s.value for s in samples if not s.labels}
    return {
        "chips": named["ultraserve_chip_watts"],
        "it": named["ultraserve_it_watts"],
        "facility": named["ultraserve_facility_watts"],
        "pue": named["ultraserve_pue_ratio"],
        "parts": sum(parts),
        "each chip": sum(chips),
    }


@pytest.mark.long
def test_chips_it_and_facility_agree_in_every_scrape_under_load(
    logger: EmulatedStatLogger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.server.gateway.http.metrics_page._MAX_AGE_S", 0.0)
    engine = BusyEngine()
    cores = core_map(chip_by_name("trainium3"), 2)
    instance = Instance(instance_type="trn3-nl72x2", runtime_tag="1", cores=cores)
    scrapes = []
    for turn in range(8):
        engine.works = turn < 5
        if not engine.works:
            engine.seen.rest(2.0)
        # Each scrape has a loop of its own, and so a watch.
        page = MetricsPage(
            make_asgi_app(REGISTRY), SnapshotPoller(engine), instance, HostMeter(1), logger
        )
        scrapes.append(scraped(page))

    for scrape in scrapes:
        assert scrape["it"] * scrape["pue"] == pytest.approx(scrape["facility"])
        assert scrape["parts"] == pytest.approx(scrape["facility"])
        assert scrape["each chip"] == pytest.approx(scrape["chips"])
    assert len({scrape["chips"] for scrape in scrapes}) >= 4, "they move with the load"
