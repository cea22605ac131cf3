"""The console of a live server in a real Chromium: its values are the API's, its buttons work."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from serving.wire import control_call
from tests.deploy.console.opened_page import OpenedPage, opened
from tests.deploy.console.told_events import Told, eventually
from tests.e2e.server_answers import control
from tests.e2e.server_process import ServerProcess
from tests.live_server import CHIPS, Load

# The browser comes first: where there is none, no engine is started for a test that is skipped.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("browser"),
]

SHOWN_WITHIN_WALL_MS = 2_000
WAIT_WALL_MS = 60_000


@pytest.fixture
def tab(browser: Browser, live_server: ServerProcess, key: str) -> Iterator[OpenedPage]:
    with opened(browser, live_server.console_url) as tab:
        tab.open(key)
        yield tab


@pytest.fixture
def healed(live_server: ServerProcess) -> Iterator[None]:
    """Whatever a test breaks is whole again for the next."""
    yield
    with control(live_server) as client:
        client.call(control_call.HEAL)


ALL_OF_IT = """() => ({
  emulated_s: document.querySelector("main").dataset.emulatedS,
  chips: [...document.querySelectorAll("[data-chip]")].map(chip => ({...chip.dataset})),
  figures: Object.fromEntries([...document.querySelectorAll("[data-figure][data-value]")]
    .map(figure => [figure.dataset.figure, figure.dataset.value])),
  racks: [...document.querySelectorAll("[data-rack]")].map(rack => ({...rack.dataset})),
})"""


def same_snapshot(tab: OpenedPage, told: Told) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page shows, read in one go, and what the API said at that emulated time."""
    found: dict[str, Any] = {}

    def is_there() -> bool:
        found.update(tab.page.evaluate(ALL_OF_IT))
        return found["emulated_s"] in told.looks

    eventually(is_there, "look that both were shown")
    return found, told.looks[found["emulated_s"]]


def test_every_value_on_the_page_is_the_api_s(
    tab: OpenedPage, live_server: ServerProcess, key: str
) -> None:
    with Load(live_server.url) as load, Told(tab.origin, key) as told:
        eventually(lambda: load.answered >= 2, "answers")
        eventually(lambda: float(tab.shown("output_per_s") or 0) > 0, "tokens")
        shown, said = same_snapshot(tab, told)

    window = said["power"]["window"]
    per_mw = {each["basis"]: each["output"] for each in window["tokens_per_megawatt"]}
    figures = {name: float(value) for name, value in shown["figures"].items() if value}
    assert figures["output_per_s"] == window["output_tokens"] / window["emulated_s"] > 0
    assert figures["output_per_s_per_mw"] == per_mw["provisioned"] > 0
    assert figures["chip_watts"] == said["telemetry"]["chip_watts"]
    assert figures["facility_watts"] == said["telemetry"]["facility_watts"]
    assert figures["requests_running"] == said["telemetry"]["requests_running"]
    assert figures["requests_waiting"] == said["telemetry"]["requests_waiting"]
    assert figures["lag_s"] == said["telemetry"]["lag_s"]
    assert len(shown["chips"]) == CHIPS
    for chip, state, meters in zip(
        shown["chips"], said["state"]["chips"], said["meters"], strict=True
    ):
        assert int(chip["chip"]) == state["chip"] == meters["chip"]
        assert (chip["health"], chip["phase"]) == (state["health"], state["phase"])
        assert float(chip["watts"]) == state["watts"] > 0
        assert float(chip["utilization"]) == meters["utilization"]
        held = sum(sum(stack["owner_bytes"].values()) for stack in state["stacks"])
        assert int(chip["hbmBytes"]) == held > 0
    watts = {int(rack["rack"]): float(rack["itWatts"]) for rack in shown["racks"]}
    assert watts == {rack["rack"]: rack["it_watts"] for rack in said["power"]["racks"]}
    assert any(float(chip["utilization"]) > 0 for chip in shown["chips"])


SELDOM = """() => ({
  ttft_p50_s: Number(document.querySelector("[data-figure=ttft_p50_s]").dataset.value),
  tpot_p50_s: Number(document.querySelector("[data-figure=tpot_p50_s]").dataset.value),
  admission: document.querySelector("[data-admission]").dataset.admission,
  finished: document.querySelector(".admission tbody tr").cells[3].innerText,
  groups: [...document.querySelectorAll("[data-group]")]
    .map(row => [Number(row.dataset.group), row.dataset.phase, row.dataset.desired]),
})"""


def test_latency_admission_and_groups_are_the_api_s(
    tab: OpenedPage, live_server: ServerProcess, key: str
) -> None:
    """After the load, when both will have been told the same."""
    with Load(live_server.url) as load:
        eventually(lambda: load.answered >= 2, "answers")
    with Told(tab.origin, key) as told:
        eventually(lambda: {"latency", "daynight", "admission"} <= set(told.latest), "looks")

        def said() -> dict[str, Any]:
            latency, admission = told.latest["latency"], told.latest["admission"]
            groups = told.latest["daynight"]["groups"]
            return {
                "ttft_p50_s": latency["ttft_p50_s"],
                "tpot_p50_s": latency["tpot_p50_s"],
                "admission": "open" if admission["is_open"] else "closed",
                "finished": f"{admission['classes'][0]['finished']:,}",
                "groups": [[each["group"], each["phase"], each["desired"]] for each in groups],
            }

        eventually(lambda: tab.page.evaluate(SELDOM) == said(), "agreement")
        assert min(said()["ttft_p50_s"], said()["tpot_p50_s"]) > 0
        assert len(said()["groups"]) == 2


def test_a_fault_that_is_clicked_shows_within_two_seconds_and_is_healed(
    tab: OpenedPage, live_server: ServerProcess, healed: None
) -> None:
    page, chip = tab.page, tab.page.locator(tab.chip(2))
    expect(chip).to_have_attribute("data-mark", "serving")
    chip.click()
    page.click('[data-action="slow-chip"]')
    page.fill('input[name="factor"]', "2.5")
    expect(page.locator('[data-dry-run="good"]')).to_be_visible(timeout=WAIT_WALL_MS)
    with control(live_server) as client:
        assert client.call(control_call.GET_STATE).chips[2].slow_factor == 1.0  # it was a dry run
        clicked_s = time.monotonic()
        page.click("[data-confirm]")
        expect(chip).to_have_attribute("data-mark", "slow", timeout=SHOWN_WITHIN_WALL_MS)
        expect(page.locator(".log [data-event] >> nth=0")).to_contain_text(
            "slow", timeout=SHOWN_WITHIN_WALL_MS
        )
        assert 1e3 * (time.monotonic() - clicked_s) <= SHOWN_WITHIN_WALL_MS
        assert client.call(control_call.GET_STATE).chips[2].slow_factor == 2.5

        page.click('[data-action="heal"]')
        page.click("[data-confirm]")
        expect(chip).to_have_attribute("data-mark", "serving", timeout=WAIT_WALL_MS)
        assert client.call(control_call.GET_STATE).chips[2].slow_factor == 1.0


def test_a_fault_that_cannot_be_is_refused_in_the_server_s_words(
    tab: OpenedPage, live_server: ServerProcess
) -> None:
    tab.page.click(tab.chip(1))
    tab.page.click('[data-action="slow-chip"]')
    tab.page.fill('input[name="factor"]', "0.5")

    expect(tab.page.locator("dialog .trouble")).to_contain_text("factor", timeout=WAIT_WALL_MS)
    with control(live_server) as client:
        assert client.call(control_call.GET_STATE).chips[1].slow_factor == 1.0


def test_admission_is_closed_and_opened_again(tab: OpenedPage, live_server: ServerProcess) -> None:
    page = tab.page
    page.click('[data-action="admission"]')
    page.fill('input[name="reason"]', "a rehearsal")
    page.click("[data-confirm]")
    try:
        expect(page.locator('[data-admission="closed"]')).to_contain_text(
            "a rehearsal", timeout=WAIT_WALL_MS
        )
        with control(live_server) as client:
            assert client.call(control_call.GET_ADMISSION).closed == "a rehearsal"
        page.click('[data-action="admission"]')
        page.click("[data-confirm]")
        expect(page.locator('[data-admission="open"]')).to_be_visible(timeout=WAIT_WALL_MS)
    finally:
        with control(live_server) as client:
            client.call(control_call.UNDRAIN_ENGINE)
            assert client.call(control_call.GET_ADMISSION).is_open


def test_a_chip_s_panel_says_its_rank_and_the_engines_of_the_api(tab: OpenedPage, key: str) -> None:
    tab.page.click(tab.chip(3))
    with Told(tab.origin, key) as told:
        rows = (
            "() => ({at: document.querySelector('main').dataset.emulatedS, rows: "
            "[...document.querySelectorAll('[data-engine]')].map(row => ({...row.dataset}))})"
        )
        found: dict[str, Any] = {}

        def is_there() -> bool:
            found.update(tab.page.evaluate(rows))
            return found["at"] in told.looks

        eventually(is_there, "look that both were shown")
        meters = told.looks[found["at"]]["meters"][3]

    utilization = {row["engine"]: float(row["utilization"]) for row in found["rows"]}
    assert utilization == {
        "all": meters["utilization"],
        **meters["engine_utilization"],
        "HBM traffic": meters["hbm_utilization"],
        "links": meters["link_utilization"],
    }
    assert "Rank 3" in tab.page.inner_text(".panel")
