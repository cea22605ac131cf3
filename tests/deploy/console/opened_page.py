"""The console in a real Chromium, with all its requests."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import (
    Browser,
    BrowserContext,
    FloatRect,
    Page,
    Playwright,
    Request,
    sync_playwright,
)

from tests.system_programs import program

SWITCHES: Final = (
    "--no-sandbox",  # a container's root has no user namespaces
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
READY_WALL_MS: Final = 60_000
DESKTOP: Final = (1440, 900)
PHONE: Final = (390, 844)


def launched(playwright: Playwright, chromium: Path) -> Browser:
    return playwright.chromium.launch(executable_path=chromium, args=list(SWITCHES))


@contextmanager
def browser_of_a_file() -> Iterator[Browser]:
    """Chromium for one file's tests: Playwright keeps a loop running in this thread."""
    chromium = program("chromium")
    with sync_playwright() as playwright:
        started = launched(playwright, chromium)
        yield started
        started.close()


@dataclass(kw_only=True)
class OpenedPage:
    """One tab; `asked` are the addresses of its requests, `said` its console's complaints, without
    the browser's own about failed requests.
    """

    context: BrowserContext
    page: Page
    origin: str
    asked: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def open(self, key: str | None) -> None:
        """Open it with the key in the fragment; with a key, wait for the first snapshot."""
        self.page.goto(self.origin + ("/" if key is None else f"/#key={key}"))
        if key is not None:
            self.page.wait_for_selector("main[data-emulated-s]", timeout=READY_WALL_MS)

    def chip(self, chip: int) -> str:
        return f"#chip-{chip}"

    def box(self, part: str) -> FloatRect:
        """A visible part's place, in pixels."""
        box = self.page.locator(part).bounding_box()
        assert box is not None, part
        return box

    def shown(self, figure: str) -> str:
        """The exact value behind a figure of the page, as text; empty without one."""
        value = self.page.get_attribute(f'[data-figure="{figure}"]', "data-value")
        assert value is not None, figure
        return value

    def overhang_px(self) -> int:
        """Width of the page beyond its window."""
        width: int = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return width

    def other_origins(self) -> set[str]:
        return {url for url in self.asked if not url.startswith(f"{self.origin}/")}


@contextmanager
def opened(
    browser: Browser, origin: str, *, size: tuple[int, int] = DESKTOP, scheme: Any = "light"
) -> Iterator[OpenedPage]:
    """A fresh tab; asserts at the end that no request has left the origin."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    opened_page = OpenedPage(context=context, page=context.new_page(), origin=origin)

    def ask(request: Request) -> None:
        opened_page.asked.append(request.url)

    context.on("request", ask)
    context.on("weberror", lambda error: opened_page.said.append(str(error.error)))
    try:
        yield opened_page
        assert opened_page.asked, "the page asked for nothing"
        assert opened_page.other_origins() == set()
        assert opened_page.said == []
    finally:
        context.close()
