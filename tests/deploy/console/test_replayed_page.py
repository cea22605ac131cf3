"""Two racks of chips in a real Chromium: what is drawn, the keyboard, the phone, what it asks."""

import re
from collections.abc import Iterator

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, Route, expect

from serving.server.engine_call import ENGINE_GONE
from tests.deploy.console.opened_page import DESKTOP, PHONE, READY_WALL_MS, OpenedPage, opened
from tests.deploy.console.replayed_machine import CUT, KEY, LOST, SLOW, ReplayedServer

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

GRAVE = {"serious", "critical"}
GONE_LOOKED_AT_WALL_MS = 3_000  # a page that hurried would have asked several times


@pytest.fixture
def tab(browser: Browser, replayed: ReplayedServer) -> Iterator[OpenedPage]:
    replayed.calls.asked.clear()
    with opened(browser, replayed.url) as tab:
        tab.open(KEY)
        yield tab


def grave(page: Page, part: str = "body") -> list[str]:
    """What axe finds in a part of the page as it is, told in one line each."""
    found = Axe().run(page, context=part).response["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:160]}"
        for each in found
        if each["impact"] in GRAVE
    ]


def marks(page: Page) -> dict[int, str]:
    found: dict[str, str] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('[data-chip]')]"
        ".map(chip => [chip.dataset.chip, chip.dataset.mark]))"
    )
    return {int(chip): mark for chip, mark in found.items()}


def test_every_chip_is_drawn_with_what_is_wrong_with_it(
    tab: OpenedPage, replayed: ReplayedServer
) -> None:
    found = marks(tab.page)

    assert len(found) == len(replayed.looks.report.state.chips) == 144
    assert (found[LOST], found[SLOW], found[CUT]) == ("lost", "slow", "impaired")
    spares = [each.chip for each in replayed.looks.report.state.chips if each.spare]
    assert [chip for chip, mark in found.items() if mark == "spare"] == spares
    assert sum(mark == "serving" for mark in found.values()) == 144 - 3 - len(spares)


def test_a_mark_is_a_letter_too(tab: OpenedPage) -> None:
    letters = {chip: tab.page.inner_text(f"{tab.chip(chip)} em") for chip in (LOST, SLOW, CUT)}

    assert letters == {LOST: "×", SLOW: "S", CUT: "!"}
    assert "lost" in (tab.page.get_attribute(tab.chip(LOST), "aria-label") or "")


def test_chips_stand_where_they_do_in_the_racks(tab: OpenedPage) -> None:
    boxes = {chip: tab.box(tab.chip(chip)) for chip in (0, 3, 4, 71, 72)}

    assert boxes[0]["y"] == boxes[3]["y"] == boxes[72]["y"]  # a tray is a row, racks are abreast
    assert boxes[4]["y"] > boxes[0]["y"]
    assert boxes[4]["x"] == boxes[0]["x"]
    assert boxes[72]["x"] > boxes[3]["x"] + boxes[3]["width"]
    assert boxes[71]["y"] > boxes[4]["y"]
    assert tab.page.inner_text('[data-rack="1"] .switches button >> nth=0') == "9/10"


def test_the_key_leaves_the_address_at_once(tab: OpenedPage) -> None:
    assert tab.page.url == f"{tab.origin}/"
    assert not any(KEY.replace(" ", "%20") in url or "key=" in url for url in tab.asked)


def test_without_the_key_one_is_asked_and_a_wrong_one_is_refused(
    browser: Browser, replayed: ReplayedServer
) -> None:
    with opened(browser, replayed.url) as tab:
        tab.open(None)
        tab.page.fill('input[name="key"]', "a wrong one")
        tab.page.press('input[name="key"]', "Enter")
        expect(tab.page.locator("#key-trouble")).to_have_text("The server does not know this key.")
        assert tab.page.locator("[data-chip]").count() == 0

        tab.page.fill('input[name="key"]', KEY)
        tab.page.click("text=Open the console")
        expect(tab.page.locator("[data-chip]")).to_have_count(144)


def test_the_keyboard_leads_to_a_chip_and_back(tab: OpenedPage) -> None:
    page = tab.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    for _ in range(12):
        if page.evaluate("'chip' in document.activeElement.dataset"):
            break
        page.keyboard.press("Tab")
    focused = "document.activeElement.id"
    assert page.evaluate(focused) == "chip-0"

    for key, chip in (("ArrowDown", 4), ("ArrowRight", 5), ("ArrowUp", 1), ("End", 143)):
        page.keyboard.press(key)
        assert page.evaluate(focused) == f"chip-{chip}", key
    for key, chip in (("Home", 0), *(("ArrowRight", n) for n in (1, 2, 3, 72))):
        page.keyboard.press(key)
        assert page.evaluate(focused) == f"chip-{chip}", key

    page.keyboard.press("Enter")
    expect(page.locator('[data-panel-chip="72"]')).to_be_visible()
    assert page.evaluate(focused) == "panel-title"
    page.keyboard.press("Escape")
    expect(page.locator("[data-panel-chip]")).to_have_count(0)
    assert page.evaluate(focused) == "chip-72"


def test_a_fault_is_tried_dry_and_asked_for_only_when_confirmed(
    tab: OpenedPage, replayed: ReplayedServer
) -> None:
    tab.page.click(tab.chip(7))
    tab.page.click('[data-action="cut-link"]')
    tab.page.select_option('select[name="tier"]', "cross-rack")
    tab.page.fill('input[name="lanes"]', "3")
    expect(tab.page.locator('[data-dry-run="good"]')).to_contain_text("as the dry run said")
    asked = {"kind": "FAULT_KIND_CUT_LINK", "chip": 7, "tier": "LINK_TIER_CROSS_RACK", "lanes": 3}
    faults = [each for each in replayed.calls.asked if each[0] == "InjectFault"]
    assert faults[-1][1] == {"fault": asked, "dryRun": True}
    assert all(body["dryRun"] for _, body, _ in faults)

    tab.page.click("[data-confirm]")
    expect(tab.page.locator("dialog")).to_have_count(0)
    assert replayed.calls.asked[-1] == ("InjectFault", {"fault": asked}, KEY)


def test_an_action_that_is_cancelled_is_not_done(tab: OpenedPage, replayed: ReplayedServer) -> None:
    tab.page.click(tab.chip(7))
    tab.page.click('[data-action="drain"]')
    expect(tab.page.locator("[data-dry-run]")).to_be_visible()
    tab.page.keyboard.press("Escape")

    expect(tab.page.locator("dialog")).to_have_count(0)
    expect(tab.page.locator('[data-panel-chip="7"]')).to_be_visible()
    drains = [body for method, body, _ in replayed.calls.asked if method == "Drain"]
    assert drains == [{"chips": [7], "graceS": 5, "dryRun": True}]


def test_a_session_looks_and_an_action_asks_for_the_key(
    tab: OpenedPage, replayed: ReplayedServer
) -> None:
    tab.page.evaluate("sessionStorage.clear()")  # as in another tab of the browser
    tab.page.reload()
    expect(tab.page.locator("[data-chip]")).to_have_count(144)
    tab.page.click(tab.chip(LOST))
    tab.page.click('[data-action="heal"]')
    tab.page.fill('dialog input[name="key"]', "a wrong one")
    tab.page.click("[data-confirm]")
    expect(tab.page.locator("dialog .trouble")).to_have_text("The server does not know this key.")
    assert not any(method == "Heal" for method, _, _ in replayed.calls.asked)

    tab.page.fill('dialog input[name="key"]', KEY)
    tab.page.click("[data-confirm]")
    expect(tab.page.locator("dialog")).to_have_count(0)
    assert replayed.calls.asked[-1] == ("Heal", {"chip": LOST}, KEY)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, replayed: ReplayedServer, scheme: str) -> None:
    with opened(browser, replayed.url, scheme=scheme) as tab:
        tab.open(None)
        tab.page.wait_for_selector(".signin")
        assert grave(tab.page, ".signin") == []
        tab.page.fill('input[name="key"]', KEY)
        tab.page.click("text=Open the console")
        tab.page.wait_for_selector("[data-event]")
        tab.page.click(tab.chip(SLOW))
        assert grave(tab.page) == []
        tab.page.click('[data-action="slow-chip"]')
        tab.page.wait_for_selector("[data-dry-run]")
        assert grave(tab.page, "dialog") == []


def test_axe_would_find_a_contrast_that_is_too_low(tab: OpenedPage) -> None:
    tab.page.evaluate("document.documentElement.style.setProperty('--ink-3', '#d0d4d0')")

    assert any(line.startswith("color-contrast") for line in grave(tab.page, ".figures"))


def test_a_phone_scrolls_in_one_direction(browser: Browser, replayed: ReplayedServer) -> None:
    with opened(browser, replayed.url, size=PHONE) as tab:
        tab.open(KEY)
        tab.page.wait_for_selector("[data-event]")
        assert tab.overhang_px() <= 0
        tab.page.click(tab.chip(SLOW))
        tab.page.wait_for_selector("[data-panel-chip]")
        assert tab.overhang_px() <= 0
        panel = tab.box(".panel")
        assert panel["width"] == PHONE[0]
        tab.page.click('[data-action="slow-chip"]')
        dialog = tab.box("dialog")
        assert dialog["x"] >= 0
        assert dialog["x"] + dialog["width"] <= PHONE[0]


def ground(page: Page) -> float:
    """How light the page's ground is, 0 to 1."""
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(float(part) for part in re.findall(r"[\d.]+", colour)[:3]) / (3 * 255)


def test_the_reader_s_scheme_is_followed_until_the_switch_says_another(
    browser: Browser, replayed: ReplayedServer
) -> None:
    with opened(browser, replayed.url, size=DESKTOP, scheme="dark") as tab:
        tab.open(KEY)
        assert ground(tab.page) < 0.2
        tab.page.emulate_media(color_scheme="light")
        assert ground(tab.page) > 0.8
        switch = tab.page.get_by_role("button", name=re.compile("^Theme"))
        switch.click()
        switch.click()
        expect(switch).to_have_accessible_name("Theme: dark")
        assert ground(tab.page) < 0.2
        tab.page.reload()
        assert ground(tab.page) < 0.2


def test_a_broken_connection_is_said_and_taken_up_again(
    browser: Browser, replayed: ReplayedServer
) -> None:
    with opened(browser, replayed.url) as tab:
        tab.open(KEY)
        events = tab.page.locator("[data-event]")
        expect(events).to_have_count(4)
        replayed.stop()
        expect(tab.page.locator(".banner.busy")).to_contain_text("The connection broke")
        expect(tab.page.locator("[data-chip]")).to_have_count(144)
        replayed.start()
        expect(tab.page.locator('[data-connection="good"]')).to_be_visible(timeout=30_000)
        expect(tab.page.locator(".banner")).to_have_count(0)
        expect(events).to_have_count(4)


@pytest.mark.slow
def test_an_engine_that_is_gone_is_said_and_its_successor_is_seen(
    browser: Browser, replayed: ReplayedServer
) -> None:
    with opened(browser, replayed.url) as tab:
        tab.open(KEY)
        banners = tab.page.locator(".banner")
        expect(tab.page.locator("[data-event]")).to_have_count(4)
        expect(banners).to_have_count(0)
        replayed.lose_engine()
        try:
            expect(tab.page.locator(".banner.bad")).to_contain_text(ENGINE_GONE)
            # The stream has ended too, which is no news of its own: it is asked for again, seldom.
            tab.page.wait_for_timeout(GONE_LOOKED_AT_WALL_MS)
            expect(banners).to_have_count(1)
            expect(tab.page.locator('[data-connection="bad"]')).to_have_text("Engine gone")
            expect(tab.page.locator("[data-chip]")).to_have_count(144)
            assert len([url for url in tab.asked if "/stream" in url]) == 1
        finally:
            replayed.find_engine()
        expect(tab.page.locator('[data-connection="good"]')).to_be_visible(timeout=30_000)
        expect(banners).to_have_count(0)


def test_an_engine_that_is_silent_is_no_live_one(tab: OpenedPage, replayed: ReplayedServer) -> None:
    pill = tab.page.locator("[data-connection]")
    expect(pill).to_have_text("Live")
    replayed.looks.silent_s = 7.0
    try:
        expect(pill).to_contain_text("Engine silent for")
        expect(pill).to_have_attribute("data-connection", "busy")
    finally:
        replayed.looks.silent_s = 0.0
    expect(pill).to_have_text("Live")


def test_signing_out_ends_the_session_and_forgets_the_key(tab: OpenedPage) -> None:
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.locator(".signin")).to_be_visible()
    assert tab.page.evaluate("sessionStorage.length") == 0
    tab.page.reload()
    expect(tab.page.locator(".signin")).to_be_visible()
    assert tab.page.locator("[data-chip]").count() == 0


def test_signing_out_shows_nothing_at_once_in_every_tab_and_says_when_the_session_lives_on(
    tab: OpenedPage,
) -> None:
    other = tab.context.new_page()
    other.goto(f"{tab.origin}/#key={KEY}")
    other.wait_for_selector("main[data-emulated-s]", timeout=READY_WALL_MS)
    held: list[Route] = []

    def hold(route: Route) -> None:  # as a server that does not answer
        held.append(route)

    tab.page.route("**/session", hold)

    with tab.page.expect_request("**/session"):
        tab.page.get_by_role("button", name="Sign out").click()
    for page in (tab.page, other):
        expect(page.locator(".signin")).to_be_visible()
        assert page.locator("[data-chip]").count() == 0
        assert page.evaluate("sessionStorage.length") == 0
    assert [route.request.method for route in held] == ["DELETE"]  # the other tab asks nothing

    expect(tab.page.get_by_role("alert")).to_have_count(0)
    held[0].abort()
    expect(tab.page.get_by_role("alert")).to_contain_text("The session could not be ended")


HOUR_S = 3_600


def group(number: int) -> dict[str, object]:
    chips = [2 * number, 2 * number + 1]
    phases = {"phase": "serving", "desired": "serving"}
    return {"group": number, "chips": chips, "lease": None, "failures": 0, "trouble": "", **phases}


def test_a_schedule_s_next_hand_over_is_said_and_marked(
    browser: Browser, replayed: ReplayedServer
) -> None:
    replayed.looks.night = {
        **dict.fromkeys(("policy_words", "next_change_if", "slo", "trouble"), ""),
        **dict.fromkeys(("emulated_s", "day_length_s", "load_per_s", "burst_response_s"), 0),
        **dict.fromkeys(("group_requests_per_s", "ttft_attainment", "tpot_attainment", "job")),
        "groups_desired": 2,
        "policy": "schedule:22:00-06:00",
        "time_of_day": "Sun 18:00 UTC",
        "day_s": 1_000.0,
        "next_change_day_s": 1_000.0 + 4 * HOUR_S,
        "reason": "the day's groups serve",
        "groups": [group(0), group(1)],
    }
    try:
        with opened(browser, replayed.url) as tab:
            tab.open(KEY)
            card = tab.page.locator(".daynight")
            expect(card).to_contain_text("Next hand-over in 4\u00a0h of the day")
            strip = tab.box(".day > div")
            places = [tab.box(f".day .{mark}")["x"] - strip["x"] for mark in ("now", "next")]
            hours = [24 * place / strip["width"] for place in places]
            assert hours == pytest.approx([18, 22], abs=0.2)
            expect(card.locator("[data-action=phase] >> nth=0")).to_be_disabled()
    finally:
        replayed.looks.night = None


def test_the_expert_map_says_the_imbalance_and_the_busiest_of_the_api(
    tab: OpenedPage, replayed: ReplayedServer
) -> None:
    load = replayed.looks.load
    layer, expert = divmod(int(np.argmax(load.tokens)), load.experts)
    card = tab.page.locator(".experts")

    expect(card).to_have_attribute("data-imbalance", str(load.imbalance))
    expect(card).to_contain_text(f"{load.layers} layers × {load.experts} experts")
    # Every layer routes as many tokens, so the most of all are the most over a layer's mean.
    expect(card).to_contain_text(
        f"Busiest: layer {layer}, expert {expert}, {max(load.tokens):,} tokens"
    )
