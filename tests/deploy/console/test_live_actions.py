"""What the page's buttons do to a live server: phases, the policy, a rank that is lent out."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from serving.server.control.control_client import ControlClient
from serving.wire import control_call
from serving.wire.day_night_state import DayNightState
from tests.deploy.console.opened_page import OpenedPage, opened
from tests.deploy.console.told_events import Told, eventually
from tests.e2e.server_answers import control
from tests.e2e.server_process import ServerProcess

# The browser comes first: where there is none, no engine is started for a test that is skipped.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("browser"),
]

WAIT_WALL_MS = 60_000
HANDOVER_WALL_S = 400.0  # a job's start and four chips, on two cores that do other things too
GROUP, GROUP_CHIPS = 1, (2, 3)
ROW = f'[data-group="{GROUP}"]'


@pytest.fixture
def tab(browser: Browser, live_server: ServerProcess, key: str) -> Iterator[OpenedPage]:
    with opened(browser, live_server.console_url) as tab:
        tab.open(key)
        yield tab


@pytest.fixture
def client(live_server: ServerProcess) -> Iterator[ControlClient]:
    """The API beside the page; whoever is away comes back, and the policy is by hand again."""
    with control(live_server) as client:
        yield client
        if client.call(control_call.GET_DAY_NIGHT).policy != "manual":
            client.call(control_call.SET_POLICY, policy="manual")
        for lease in client.call(control_call.GET_STATE).leases:
            if lease.phase in ("draining", "training", "maintenance"):
                client.call(control_call.RESUME, lease=lease.number)
        client.call(control_call.SET_PHASE, group=GROUP, phase="serving")
        until(client, all_serve)


def all_serve(state: DayNightState) -> bool:
    return all(group.phase == "serving" for group in state.groups) and state.job.pid is None


def until(client: ControlClient, condition: Callable[[DayNightState], bool]) -> None:
    eventually(
        lambda: condition(client.call(control_call.GET_DAY_NIGHT)), "phase", wall_s=HANDOVER_WALL_S
    )


def marks(tab: OpenedPage) -> list[str]:
    found: list[str] = tab.page.evaluate(
        "[...document.querySelectorAll('[data-chip]')].map(chip => chip.dataset.mark)"
    )
    return found


def confirmed(tab: OpenedPage, title: str) -> None:
    """The dialog asks what was clicked; then it is done."""
    expect(tab.page.locator("dialog h2")).to_have_text(title)
    tab.page.click("[data-confirm]")
    expect(tab.page.locator("dialog")).to_have_count(0, timeout=WAIT_WALL_MS)


def phase_shown(tab: OpenedPage, phase: str) -> None:
    expect(tab.page.locator(ROW)).to_have_attribute(
        "data-phase", phase, timeout=1e3 * HANDOVER_WALL_S
    )


NIGHT = """() => {
  const card = document.querySelector(".daynight");
  const facts = [...card.querySelectorAll("[data-fact]")];
  return {
    emulated_s: card.dataset.emulatedS,
    policy: card.dataset.policy,
    time_of_day: card.querySelector(".side").innerText,
    reason: card.querySelector(".reason").innerText,
    groups: [...card.querySelectorAll("[data-group]")]
      .map(row => [Number(row.dataset.group), row.dataset.phase, row.dataset.desired]),
    facts: Object.fromEntries(facts.map(fact => [fact.dataset.fact, fact.dataset.value])),
  };
}"""


def facts_of(said: dict[str, Any]) -> dict[str, Any]:
    """What the card's list says, of the API's state: what is not known is left out."""
    attainments = ("ttft_attainment", "tpot_attainment")
    names = ("load_per_s", "group_requests_per_s", "slo", "burst_response_s", *attainments)
    facts = {name: said[name] for name in names}
    job = said["job"]
    facts |= {"job_step": job["step"], "job_loss": job["loss"]}
    if job["emulated_s"] > 0:  # before that, no step has been made
        facts["job_share"] = pytest.approx(job["emulated_s"] / (job["emulated_s"] + job["lag_s"]))
    return {name: value for name, value in facts.items() if value is not None}


def same_night(tab: OpenedPage, told: Told) -> dict[str, Any]:
    """The card is what the API said at that emulated time; what it said then."""
    shown: dict[str, Any] = {}

    def is_there() -> bool:
        shown.update(tab.page.evaluate(NIGHT))
        return shown["emulated_s"] in told.nights

    eventually(is_there, "night that both were shown")
    said = told.nights[shown["emulated_s"]]
    for name in ("policy", "time_of_day", "reason"):
        assert shown[name] == said[name], name
    assert shown["groups"] == [[g["group"], g["phase"], g["desired"]] for g in said["groups"]]
    facts = {
        name: value if name == "slo" else float(value) for name, value in shown["facts"].items()
    }
    assert facts == facts_of(said)
    return said


def test_a_group_is_sent_to_train_and_called_back(
    tab: OpenedPage, client: ControlClient, key: str
) -> None:
    until(client, all_serve)
    button = tab.page.locator(f"{ROW} button")
    phase_shown(tab, "serving")
    button.click()
    expect(tab.page.locator("#action-words")).to_contain_text("2 chips are drained and lent")
    assert (
        client.call(control_call.GET_DAY_NIGHT).groups[GROUP].desired == "serving"
    )  # nothing before it is confirmed
    confirmed(tab, f"Let group {GROUP} train?")
    phase_shown(tab, "training")
    assert client.call(control_call.GET_DAY_NIGHT).groups[GROUP].desired == "training"
    until(client, lambda state: state.job.step > 0 and state.job.loss is not None)
    assert [chip.phase for chip in client.call(control_call.GET_STATE).chips] == ["serving"] * 2 + [
        "training"
    ] * 2
    eventually(lambda: marks(tab) == ["serving"] * 2 + ["training"] * 2, "marks")
    with Told(tab.origin, key) as told:
        eventually(lambda: "job_loss" in tab.page.evaluate(NIGHT)["facts"], "loss")
        said = same_night(tab, told)
    assert (said["job"]["step"] > 0, math.isfinite(said["job"]["loss"])) == (True, True)

    expect(button).to_have_text("Serve…")
    button.click()
    confirmed(tab, f"Let group {GROUP} serve?")
    phase_shown(tab, "serving")
    assert client.call(control_call.GET_DAY_NIGHT).groups[GROUP].desired == "serving"
    assert {chip.phase for chip in client.call(control_call.GET_STATE).chips} == {"serving"}
    eventually(lambda: marks(tab) == ["serving"] * 4, "marks")


def test_another_policy_decides_once_it_is_confirmed(
    tab: OpenedPage, client: ControlClient
) -> None:
    page = tab.page
    page.click('[data-action="policy"]')
    page.fill('input[name="policy"]', "sometimes")
    page.click("[data-confirm]")
    expect(page.locator("dialog .trouble")).to_contain_text("sometimes", timeout=WAIT_WALL_MS)
    assert client.call(control_call.GET_DAY_NIGHT).policy == "manual"

    page.fill('input[name="policy"]', "never")
    confirmed(tab, "Change the policy?")
    assert client.call(control_call.GET_DAY_NIGHT).policy == "never"
    expect(page.locator('[data-policy="never"]')).to_be_visible(timeout=WAIT_WALL_MS)
    expect(page.locator(f"{ROW} button")).to_be_disabled()

    page.click('[data-action="policy"]')
    page.fill('input[name="policy"]', "manual")
    confirmed(tab, "Change the policy?")
    expect(page.locator(f"{ROW} button")).to_be_enabled(timeout=WAIT_WALL_MS)
    assert client.call(control_call.GET_DAY_NIGHT).policy == "manual"


def test_a_chip_is_drained_with_its_group_and_taken_back(
    tab: OpenedPage, client: ControlClient
) -> None:
    until(client, all_serve)
    page, chip = tab.page, tab.page.locator(tab.chip(3))
    leases = len(client.call(control_call.GET_STATE).leases)
    chip.click()
    page.click('[data-action="drain"]')
    page.fill('input[name="grace_s"]', "0.5")
    expect(page.locator('[data-dry-run="good"]')).to_be_visible(timeout=WAIT_WALL_MS)
    assert len(client.call(control_call.GET_STATE).leases) == leases  # it was a dry run
    confirmed(tab, f"Drain group {GROUP} for maintenance?")
    expect(chip).to_have_attribute("data-mark", "maintenance", timeout=1e3 * HANDOVER_WALL_S)
    lease = client.call(control_call.GET_STATE).leases[-1]
    assert (lease.chips, len(client.call(control_call.GET_STATE).leases)) == (
        GROUP_CHIPS,
        leases + 1,
    )

    page.click('[data-action="resume"]')
    confirmed(tab, f"Take back 2 chips of lease {lease.number}?")
    expect(chip).to_have_attribute("data-mark", "serving", timeout=1e3 * HANDOVER_WALL_S)
    assert client.call(control_call.GET_STATE).chips[3].phase == "serving"
