"""Watching processes and starting ones that a service manager's SIGTERM does not end. They are
plain programs here; `test_ray_session` has Ray's own daemons.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from emulator.actors.private_ray import DaemonWatch, without_sigterm

pytestmark = pytest.mark.process

WAIT_S = 20.0

Start = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def sleep() -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1]

    yield sleep
    for process in started:
        process.kill()
        process.wait()


class Told:
    """Who was told to have ended."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.event = threading.Event()

    def __call__(self, name: str) -> None:
        self.names.append(name)
        self.event.set()


def watching_threads() -> int:
    return sum(thread.name == "ray-daemons" for thread in threading.enumerate())


def test_the_first_that_ends_is_told_once(start: Start) -> None:
    told, one, two = Told(), start(), start()
    watch = DaemonWatch({"one": one.pid, "two": two.pid}, told)

    two.kill()
    assert told.event.wait(WAIT_S)
    one.kill()
    watch.stop()
    watch.stop()

    assert told.names == ["two"]
    assert watching_threads() == 0


def test_one_that_had_ended_before_is_told_too(start: Start) -> None:
    told, one = Told(), start()
    one.kill()
    watch = DaemonWatch({"one": one.pid}, told)  # not yet reaped, as children of Ray's driver are

    assert told.event.wait(WAIT_S)
    watch.stop()
    assert told.names == ["one"]


def test_one_that_had_ended_and_was_reaped_is_told_too(start: Start) -> None:
    told, one, two = Told(), start(), start()
    one.kill()
    one.wait()
    watch = DaemonWatch({"one": one.pid, "two": two.pid}, told)

    assert told.event.wait(WAIT_S)
    watch.stop()
    assert told.names == ["one"]


def test_a_fork_that_holds_the_watch_s_pipe_keeps_nobody_waiting(start: Start) -> None:
    told, one = Told(), start()
    watch = DaemonWatch({"one": one.pid}, told)
    held = os.dup(watch._pipe)  # as a process has it that was forked meanwhile
    stopper = threading.Thread(target=watch.stop)
    stopper.start()
    stopper.join(WAIT_S)
    stopped = not stopper.is_alive()
    os.close(held)
    stopper.join(WAIT_S)

    assert stopped
    assert told.names == []


def test_nothing_is_told_of_ends_after_the_watch_s(start: Start) -> None:
    told, one = Told(), start()
    watch = DaemonWatch({"one": one.pid}, told)

    watch.stop()
    one.kill()
    one.wait()

    assert not told.event.wait(0.2)
    assert watching_threads() == 0


def test_the_one_who_is_told_may_stop_the_watch(start: Start) -> None:
    stopped = threading.Event()
    one = start()

    def end(_name: str) -> None:
        watch.stop()
        stopped.set()

    watch = DaemonWatch({"one": one.pid}, end)
    one.kill()

    assert stopped.wait(WAIT_S)


def test_what_is_started_without_sigterm_is_ended_by_sigkill_alone(start: Start) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with without_sigterm():
        spared = start()
    other = start()

    spared.terminate()
    other.terminate()

    assert other.wait(WAIT_S) == -signal.SIGTERM
    time.sleep(0.1)  # nothing happens, and that cannot be waited for
    assert spared.poll() is None
    spared.kill()
    assert spared.wait(WAIT_S) == -signal.SIGKILL
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
