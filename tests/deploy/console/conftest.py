"""One browser for a file's tests of the page, and one machine of 144 chips."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.deploy.console.opened_page import launched
from tests.deploy.console.replayed_machine import ReplayedServer, replayed_server
from tests.system_programs import program


@pytest.fixture(scope="module")  # Playwright keeps a loop running in this thread: not for others
def browser() -> Iterator[Browser]:
    chromium = program("chromium")
    with sync_playwright() as playwright:
        started = launched(playwright, chromium)
        yield started
        started.close()


@pytest.fixture(scope="session")
def replayed() -> Iterator[ReplayedServer]:
    with replayed_server() as server:
        yield server
