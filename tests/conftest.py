"""Fixtures of all packages: checkpoints, profiles of property tests, and fast tests."""

import gc
import logging
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import shares
from tests.emulator.chip.random_checkpoints import SHAPES, RandomCheckpoints
from tests.golden import GoldenFolder
from tests.process_guard import (
    IMPLIED_BY,
    MARKS_CHIPS,
    MARKS_PROCESSES,
    ProcessGuard,
    lives_among_processes,
    starts_processes,
)

if TYPE_CHECKING:  # most tests need none of what these import
    from tests.e2e.server_process import ServerProcess
    from tests.e2e.span_collector import SpanCollector

# As in a chip's process, and before numpy is imported: one thread, and no waiting for a second
# one that another program keeps from running.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# How long an example takes says more about the machine than about the code. An example that
# failed is printed with what it takes to repeat it. Where CI is set Hypothesis draws the same ones
# every time, so that a change is judged by itself; elsewhere it draws new ones.
settings.register_profile("everyday", deadline=None, print_blob=True, max_examples=10)
settings.register_profile("thorough", settings.get_profile("everyday"), max_examples=500)
settings.load_profile("everyday")

NOT_FAST = ("slow", "process", "long")
NONE_FAST = re.compile(rf"^pytestmark = .*\bmark\.({'|'.join((*NOT_FAST, *IMPLIED_BY))})\b", re.M)
SLOW_TIMEOUT_S = 1_800  # the wall's, where other programs may have the processors too
ID_LENGTH_MAX = 200
GUARD = pytest.StashKey[ProcessGuard]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast",
        action="store_true",
        help=f"leave out what is {', '.join(NOT_FAST)}",
    )
    parser.addoption(
        "--part",
        choices=("units", "chips", "processes"),
        help="only tests that start no process, that start an engine or chips, or another process",
    )
    parser.addoption(
        "--shares",
        action="store_true",
        help="with `-n N --dist each`, each worker imports and runs its share of the files",
    )
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the texts of tests/**/golden anew, from what the reports say now",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[GUARD] = ProcessGuard()
    if config.getoption("--shares"):
        config.pluginmanager.register(shares.plugin(config), "shares")
    # A shell has what it runs in the background ignore SIGINT, and so all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until all is collected: objects of libraries and tests that stay to the end


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which may be off
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """With `--part units`, of whose time a quarter is waiting, a worker more than processors."""
    return 1 + len(os.sched_getaffinity(0)) if config.getoption("--part") == "units" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--fast` or `--part`, do not import files of which no test would run."""
    fast = config.getoption("--fast")
    part = "units" if fast else config.getoption("--part")
    among_processes = lives_among_processes(collection_path)
    if part == "units" and among_processes:
        return True
    if part is None or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text("utf-8")
    if part == "units":
        return True if fast and NONE_FAST.search(text) else None
    if part == "chips":
        return None if MARKS_CHIPS.search(text) else True
    return None if among_processes or MARKS_PROCESSES.search(text) else True


def pytest_make_parametrize_id(val: object) -> str | None:
    """A long text by its beginning and length: ids go to and from each worker, again and again."""
    if isinstance(val, str | bytes) and len(val) > ID_LENGTH_MAX:
        return f"{val[:ID_LENGTH_MAX]!r} and so on, {len(val)} long"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if starts_processes(item):
            item.add_marker("process")
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
    # Files are handed to workers in this order, where Makefile asks for it: those that take long
    # begin first, so that no worker has one left when the others have ended.
    hands_out = hasattr(config, "workerinput")
    long = Counter(item.path for item in items if hands_out and _takes_long(item))
    items.sort(key=lambda item: (*_use_of_live_server(item), -long[item.path]))
    if config.getoption("--fast"):
        _keep(config, items, lambda item: not any(map(item.get_closest_marker, NOT_FAST)))
    if (part := config.getoption("--part")) is not None:
        _keep(config, items, lambda item: _part(item) == part)


def _keep(
    config: pytest.Config, items: list[pytest.Item], chosen: Callable[[pytest.Item], bool]
) -> None:
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (kept if chosen(item) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _part(item: pytest.Item) -> str:
    if item.get_closest_marker("engine") or item.get_closest_marker("fleet"):
        return "chips"
    return "processes" if item.get_closest_marker("process") else "units"


def _use_of_live_server(item: pytest.Item) -> tuple[bool, bool]:
    """Whether a test uses it, and ends it: it starts when nothing else does any more, and ends with
    the last test.
    """
    uses = "live_server" in getattr(item, "fixturenames", ())
    return uses, item.get_closest_marker("ends_live_server") is not None


def _takes_long(item: pytest.Item) -> bool:
    marks = {mark.name for mark in item.iter_markers()}
    return bool(marks & {"long", "process"}) and "slow" not in marks


def pytest_collection_finish() -> None:
    """Leave what stays to the end out of every later collection of garbage."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if item.get_closest_marker("process"):
        return (yield)
    with item.config.stash[GUARD].holding(item.nodeid):
        return (yield)


@pytest.fixture
def caplog(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """pytest's own, which also hears loggers that vLLM's settings keep from the root."""
    for name in ("ultraserve", "vllm"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    return caplog


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> GoldenFolder:
    """The texts beside the test."""
    update = request.config.getoption("--update-golden")
    return GoldenFolder(path=request.path.parent / "golden", update=update)


@pytest.fixture(scope="session")
def small_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Directories of random Qwen3-MoE checkpoints by the names in `SHAPES`, made on demand."""
    return RandomCheckpoints(tmp_path_factory.mktemp("checkpoints"), SHAPES)


@pytest.fixture(scope="session")
def live_spans() -> Iterator["SpanCollector"]:
    """The live server's collector of spans, over gRPC."""
    from tests.e2e.span_collector import SpanCollector  # noqa: PLC0415

    with SpanCollector() as collector:
        yield collector


@pytest.fixture(scope="session")
def live_server(
    live_spans: "SpanCollector", tmp_path_factory: pytest.TempPathFactory
) -> Iterator["ServerProcess"]:
    from tests.live_server import live_server_started  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("live")
    with live_server_started(folder, spans_endpoint=live_spans.grpc_endpoint) as server:
        yield server
