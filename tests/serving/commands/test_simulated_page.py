"""The page of `ultraserve simulate --html` in a real Chromium."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from serving.main import main
from tests.deploy.console.opened_page import browser_of_a_file, opened

pytestmark = [pytest.mark.process, pytest.mark.long]

CHARTS = (
    "Time to first token over time",
    "Time per output token over time",
    "Requests over time: asked and achieved",
    "Output tokens over time",
    "Requests in flight over time",
    "Distribution of latencies",
    "Inter-token latency",
    "Requests at the schedulers over time",
    "KV cache in use over time",
    "Power over time",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browser_of_a_file() as started:
        yield started


def test_the_page_draws_every_chart_and_asks_for_nothing(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    traffic = ("--rate", "40", "--requests", "200", "--input", "300", "--output", "uniform:1-20")
    machine = ("--model", "qwen3-30b-a3b", "--chips", "2", "--slo", "ttft=1s,tpot=100ms@p99")
    assert main(["simulate", *machine, *traffic, "--html", str(path)]) == 0

    with opened(browser, f"file://{tmp_path}") as tab:
        tab.page.goto(path.as_uri())
        tab.page.wait_for_function(
            "count => document.querySelectorAll('[data-chart] svg.marks').length === count",
            arg=len(CHARTS),
            timeout=60_000,
        )
        assert tab.asked == [path.as_uri()]
        titles = tab.page.locator("section h2").all_inner_texts()
        words = tab.page.inner_text("main")
        drawn = tab.page.locator("[data-chart] svg.marks").all()
        marks = ", ".join(f"g.mark-{kind} path[d]" for kind in ("line", "area", "rect"))
        assert all(each.locator(marks).count() for each in drawn)

    assert [title for title in titles if title in CHARTS] == list(CHARTS)
    assert {"latency, emulated ms", "from the cost model", "engine"} <= set(titles)
    assert "modelled, not measured" in words
    assert "SLO kept; no request failed" in words
    assert f"--html {path}" not in words
