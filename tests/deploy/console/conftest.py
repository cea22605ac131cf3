"""One browser for a file's tests of the page, and one machine of 144 chips."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.deploy.console.opened_page import browser_of_a_file
from tests.deploy.console.replayed_machine import ReplayedServer, replayed_server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browser_of_a_file() as started:
        yield started


@pytest.fixture(scope="session")
def replayed() -> Iterator[ReplayedServer]:
    with replayed_server() as server:
        yield server
