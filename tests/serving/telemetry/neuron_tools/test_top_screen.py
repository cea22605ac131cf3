"""The screen of `ultraserve top` as Textual runs it without a terminal."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, TabbedContent

from emulator.errors import ConfigError, UltraServeError
from serving.telemetry.neuron_tools.memory_tree import MemoryTree
from serving.telemetry.neuron_tools.top_figures import TopFigures, top_figures
from serving.telemetry.neuron_tools.top_screen import KEYS, Help, Lost, TopScreen
from tests.serving.telemetry.neuron_tools.looks import a_snapshot

pytestmark = pytest.mark.long

FOUR = top_figures(a_snapshot(4), None)
ALL = top_figures(a_snapshot(144), None)
Screen = Pilot[UltraServeError | None]


class Looks:
    """Gives the figures that are set, or raises."""

    def __init__(self, figures: TopFigures) -> None:
        self.figures = figures
        self.failure: Exception | None = None
        self.asked = threading.Semaphore(0)

    def __call__(self) -> TopFigures:
        self.asked.release()
        if self.failure is not None:
            raise self.failure
        return self.figures


def shown(pilot: Screen) -> str:
    """What stands on the screen."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


async def until(pilot: Screen, condition: Callable[[], bool], what: str) -> None:
    for _ in range(400):
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError(f"{what} did not happen:\n{shown(pilot)}")


def played(
    looks: Callable[[], TopFigures],
    play: Callable[[Screen], Awaitable[None]],
    *,
    size: tuple[int, int] = (80, 24),
    first: TopFigures = FOUR,
    interval_s: float = 60.0,
) -> TopScreen:
    """Run the screen while `play` presses keys and looks."""

    async def run() -> TopScreen:
        app = TopScreen(looks, first=first, address="127.0.0.1:8001", interval_s=interval_s)
        async with app.run_test(size=size) as pilot:
            await play(pilot)
        return app

    return asyncio.run(run())


def test_144_chips_fit_80_by_24_with_title_figures_and_keys() -> None:
    async def play(pilot: Screen) -> None:
        await until(pilot, lambda: "T16 " in shown(pilot), "the grid")
        lines = shown(pilot).splitlines()
        assert lines[0].startswith("ultraserve top 0.1.0  trn3-nl72x2 (emulated)")
        assert "576 NC" in lines[3]
        assert "T17  34  35  36  36   T17  70  71  72  72" in lines[22]
        assert lines[23].endswith("h help  q quit")
        assert "Tokens/s out     1,234" in shown(pilot)

    played(Looks(ALL), play, first=ALL)


def test_f_toggles_utilization_and_teraflops_and_m_shows_more() -> None:
    async def play(pilot: Screen) -> None:
        heads = []
        for key in ("", "F", "F", "m", "m", "m", "m", "m"):
            await pilot.press(*([key] if key else []))
            await pilot.pause()
            heads.append(shown(pilot).splitlines()[3].split(":")[0].removeprefix("v4d "))
        assert heads == [
            "utilization %",
            "rate TFLOPS",
            "utilization %",
            "rate TFLOPS",
            "HBM %",
            "power W",
            "links %",
            "utilization %",
        ]

    played(Looks(FOUR), play)


def test_digits_and_a_and_d_select_tabs() -> None:
    async def play(pilot: Screen) -> None:
        tabs = pilot.app.query_one(TabbedContent)
        seen = []
        for key in ("2", "3", "4", "1", "a", "a", "d", "d"):
            await pilot.press(key)
            await pilot.pause()
            seen.append(tabs.active)
        assert seen == ["memory", "ranks", "chips", "cores", "chips", "ranks", "chips", "cores"]

    played(Looks(FOUR), play)


def test_the_memory_tree_opens_and_closes_as_a_whole_and_adds_up() -> None:
    async def play(pilot: Screen) -> None:
        await pilot.press("2")
        await until(pilot, lambda: "ND 3 (serving)" in shown(pilot), "devices")
        assert "NC 0" not in shown(pilot)
        # Nobody has looked at the host yet.
        (host,) = [line for line in shown(pilot).splitlines() if "This host (real)" in line]
        assert host.split()[-1] == "-"
        await pilot.press("x")
        await until(pilot, lambda: "Model Scratchpad" in shown(pilot), "categories")
        tree = pilot.app.query_one(MemoryTree)
        device = tree.root.children[0]
        assert [len(core.children) for chip in device.children for core in chip.children] == [
            5
        ] * 16
        lines = shown(pilot).splitlines()
        assert any("Device memory" in line and "444.00 GiB" in line for line in lines)
        assert any("ND 0" in line and "111.00 GiB" in line for line in lines)
        assert any("NC 0" in line and "27.75 GiB" in line for line in lines)
        await pilot.press("x")
        await until(pilot, lambda: "NC 0" not in shown(pilot), "closing")

    played(Looks(FOUR), play)


def test_one_device_opens_by_itself() -> None:
    async def play(pilot: Screen) -> None:
        await pilot.press("2")
        await until(pilot, lambda: "ND 0" in shown(pilot), "devices")
        await pilot.press("tab", "down", "down", "enter")
        await until(pilot, lambda: "NC 3" in shown(pilot), "cores")
        assert "NC 4" not in shown(pilot)

    played(Looks(FOUR), play)


def test_ranks_and_chips_are_tables_that_follow_the_snapshots() -> None:
    looks = Looks(FOUR)

    async def play(pilot: Screen) -> None:
        await pilot.press("3")
        await until(pilot, lambda: "1,000 steps: 10 prefill, 20 mixed" in shown(pilot), "ranks")
        await pilot.press("4")
        table = pilot.app.query_one(DataTable)
        await until(pilot, lambda: table.row_count == 4, "rows")
        looks.figures = top_figures(a_snapshot(6), None)
        await until(pilot, lambda: table.row_count == 6, "more rows")
        assert str(table.get_cell("5", "util")) == "3.0 %"
        assert str(table.get_cell("5", "cores")) == "20-23"

    played(looks, play, size=(120, 30), interval_s=0.2)


def test_a_lost_connection_is_told_and_what_comes_back_is_shown() -> None:
    looks = Looks(FOUR)

    async def play(pilot: Screen) -> None:
        await until(pilot, lambda: "ND0" in shown(pilot), "the first look")
        looks.failure = Lost("nobody answers")
        await until(pilot, lambda: "connection lost, trying again" in shown(pilot), "the loss")
        assert "nobody answers" in shown(pilot)
        assert "ND0" in shown(pilot)  # the last figures stay
        looks.figures, looks.failure = top_figures(a_snapshot(4, emulated_s=777.0), None), None
        await until(pilot, lambda: "emulated 777.000 s" in shown(pilot), "its return")
        assert "connection lost" not in shown(pilot)

    played(looks, play, interval_s=0.2)


@pytest.mark.parametrize(
    "failure", [ConfigError(field="key", value="x", expected="another"), KeyError("a bug")], ids=str
)
def test_what_cannot_pass_ends_the_screen_and_is_handed_on(failure: Exception) -> None:
    looks = Looks(FOUR)
    looks.failure = failure

    async def play(pilot: Screen) -> None:
        for _ in range(400):
            if not pilot.app.is_running or pilot.app.return_value is not None:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("it goes on")

    assert played(looks, play).return_value is failure


def test_help_shows_every_key_and_closes() -> None:
    async def play(pilot: Screen) -> None:
        await pilot.press("h")
        await until(pilot, lambda: isinstance(pilot.app.screen, Help), "help")
        text = shown(pilot)
        assert all(key in text for key, _ in KEYS)
        await pilot.press("h")
        await until(pilot, lambda: not isinstance(pilot.app.screen, Help), "closing")

    played(Looks(FOUR), play)


def test_looks_go_on_below_the_help() -> None:
    looks = Looks(FOUR)

    async def play(pilot: Screen) -> None:
        await pilot.press("h")
        await until(pilot, lambda: isinstance(pilot.app.screen, Help), "help")
        looks.figures = top_figures(a_snapshot(4, emulated_s=888.0), None)
        await until(pilot, lambda: "emulated 888.000 s" in shown(pilot), "a look")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, Help), "closing")
        assert "ND0" in shown(pilot)

    played(looks, play, interval_s=0.2)


def test_a_larger_terminal_shows_more() -> None:
    async def play(pilot: Screen) -> None:
        await until(pilot, lambda: "T16 " in shown(pilot), "the grid")
        assert "143  72" not in shown(pilot)
        await pilot.resize_terminal(200, 50)
        await until(pilot, lambda: "143  72" in shown(pilot), "numbers")
        assert "This host (real)" in shown(pilot)
        await pilot.resize_terminal(40, 10)
        await until(pilot, lambda: "143  72" not in shown(pilot), "the small grid")

    played(Looks(ALL), play, first=ALL)


def test_q_quits() -> None:
    async def play(pilot: Screen) -> None:
        await pilot.press("q")
        await pilot.pause()

    app = played(Looks(FOUR), play)
    assert (app.return_value, app.return_code) == (None, 0)


def test_a_look_that_does_not_come_back_does_not_keep_q_waiting() -> None:
    under_way, never = threading.Event(), threading.Event()

    def look() -> TopFigures:
        under_way.set()
        never.wait(60)
        return FOUR

    async def play(pilot: Screen) -> None:
        await until(pilot, under_way.is_set, "a look")
        await pilot.press("q")

    app = played(look, play)
    assert not never.is_set()
    assert app.return_code == 0
    never.set()


@pytest.mark.parametrize("value", ["1", None])
def test_no_color_is_obeyed(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)

    async def play(pilot: Screen) -> None:
        await until(pilot, lambda: "ND0" in shown(pilot), "the first look")
        assert pilot.app.no_color is (value is not None)

    played(Looks(FOUR), play)
