"""Shares of the test files, one for each of pytest-xdist's workers (`-n N --dist each --shares`).

Its other ways have each worker import all files, of which it runs a part; here it imports its share
alone, and `--dist each` has it run all of that.
"""

from collections.abc import Generator
from pathlib import Path

import pytest

Collected = list[pytest.Collector]


def plugin(config: pytest.Config) -> object:
    """What a worker registers, or what hands out to them."""
    given = getattr(config, "workerinput", None)
    return _AllShares() if given is None else _Share(given["workerid"], given["workercount"])


class _Share:
    """Leaves out other workers' files: each worker walks the same ones in the same order, and gives
    the next to the share with the least text so far.
    """

    def __init__(self, worker: str, workers: int) -> None:
        self._own = int(worker.removeprefix("gw"))
        self._bytes = [0] * workers
        self._owners = dict[Path, int]()  # a folder is walked again for each file that is named

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, Collected, Collected]:
        found = yield
        if found and file_path not in self._owners:
            least = self._bytes.index(min(self._bytes))
            self._bytes[least] += file_path.stat().st_size
            self._owners[file_path] = least
        # A file that is named has to be found by all.
        return found if self._owns(file_path) or parent.session.isinitpath(file_path) else []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._owns(item.path)]

    def _owns(self, path: Path) -> bool:
        return self._owners.get(path) == self._own


class _AllShares:
    """Tells pytest of the tests of all shares, where xdist tells it of the last worker's."""

    def __init__(self) -> None:
        self._tests = 0

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._tests += len(ids)

    def pytest_runtest_logstart(self) -> None:
        self._session.testscollected = self._tests
