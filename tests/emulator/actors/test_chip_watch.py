"""Chips that compute, are stopped, or are gone, told apart by what their processes do."""

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest

from emulator.actors import chip_watch
from emulator.actors.chip_watch import ChipWatch, Pulse, ready
from emulator.chip.effects import ChipReady
from emulator.errors import ChipSilent

pytestmark = pytest.mark.long

TIMEOUT_S = 0.6
LONGEST_S = 30.0


class SlowHub:
    """Chips that answer once `answers` says so; a receive waits as a real one does."""

    def __init__(self, answers: Callable[[int], bool]) -> None:
        self._answers = answers

    def receive(self, chips: Collection[int], timeout_s: float) -> Iterator[tuple[int, Any]]:
        left, end_s = set(chips), time.monotonic() + timeout_s
        while left:
            for chip in sorted(left):
                if self._answers(chip):
                    left.discard(chip)
                    yield chip, f"of {chip}"
            if time.monotonic() >= end_s:
                raise ChipSilent(tuple(sorted(left)), timeout_s)
            time.sleep(0.02)


@pytest.fixture
def processes() -> Iterator[Callable[[str], "subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(program: str) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen([sys.executable, "-c", program]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def watch_of(*processes: "subprocess.Popen[bytes]") -> ChipWatch:
    watch = ChipWatch(TIMEOUT_S)
    boot = ready(0).boot
    for chip, process in enumerate(processes):
        watch.add(ChipReady(chip=chip, pid=process.pid, thread=process.pid, boot=boot))
    return watch


REST = "import time; time.sleep(60)"
COMPUTE = "while True: pass"


@pytest.mark.process
def test_of_chips_that_are_late_the_one_that_does_nothing_is_silent(processes: Any) -> None:
    at_work, stopped = processes(COMPUTE), processes(COMPUTE)
    time.sleep(0.2)
    stopped.send_signal(signal.SIGSTOP)
    watch = watch_of(at_work, stopped)
    began_s = time.monotonic()

    with pytest.raises(ChipSilent) as caught:
        list(watch.receive(SlowHub(lambda _: False), (0, 1), LONGEST_S))  # type: ignore[arg-type]

    assert caught.value.chips == (1,)
    assert TIMEOUT_S <= time.monotonic() - began_s < LONGEST_S / 2


@pytest.mark.process
def test_a_chip_that_computes_for_longer_than_the_timeout_is_waited_for(processes: Any) -> None:
    watch = watch_of(processes(COMPUTE))
    answers_s = time.monotonic() + 3 * TIMEOUT_S
    hub = SlowHub(lambda _: time.monotonic() > answers_s)

    assert list(watch.receive(hub, (0,), LONGEST_S)) == [(0, "of 0")]  # type: ignore[arg-type]


@pytest.mark.process
def test_a_chip_that_waits_for_others_or_weights_is_silent_only_when_it_is_stopped(
    processes: Any,
) -> None:
    waiting, stopped = processes(REST), processes(REST)
    time.sleep(0.2)
    watch, chips = watch_of(waiting, stopped), (0, 1)
    answers_s = time.monotonic() + 3 * TIMEOUT_S
    hub: Any = SlowHub(lambda _: time.monotonic() > answers_s)
    assert len(list(watch.receive(hub, chips, LONGEST_S, waits=chips.__contains__))) == 2

    stopped.send_signal(signal.SIGSTOP)
    hub = SlowHub(lambda _: False)
    with pytest.raises(ChipSilent) as caught:
        list(watch.receive(hub, chips, LONGEST_S, waits=chips.__contains__))
    assert caught.value.chips == (1,)


@pytest.mark.process
def test_no_chip_is_late_while_progress_is_made(processes: Any) -> None:
    watch = watch_of(processes(REST))
    end_s = time.monotonic() + 1.5
    hub: Any = SlowHub(lambda _: time.monotonic() > end_s)
    rounds = itertools.count()

    def receive(progress: Callable[[], int]) -> list[tuple[int, Any]]:
        return list(watch.receive(hub, (0,), 0.5, waits=lambda _: True, progress=progress))

    with pytest.raises(ChipSilent):
        receive(lambda: 7)
    assert time.monotonic() < end_s
    assert receive(lambda: next(rounds)) == [(0, "of 0")]


@pytest.mark.process
def test_a_chip_that_goes_on_for_too_long_does_not_take_those_along_that_wait_for_it(
    processes: Any,
) -> None:
    watch = watch_of(*(processes(COMPUTE) for _ in range(3)))

    with pytest.raises(ChipSilent) as raised:
        list(watch.receive(SlowHub(lambda _: False), range(3), 1.5, waits=lambda chip: chip != 1))

    assert raised.value.chips == (1,)


def test_a_chip_in_a_debugger_s_hands_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ChipWatch(TIMEOUT_S)
    watch.add(ready(0))
    monkeypatch.setattr(chip_watch, "_pulse", lambda _: Pulse(state="t", ticks=7))
    answers_s = time.monotonic() + 3 * TIMEOUT_S
    hub: Any = SlowHub(lambda _: time.monotonic() > answers_s)
    assert list(watch.receive(hub, (0,), LONGEST_S)) == [(0, "of 0")]

    for _ in range(2):
        assert watch.look() == ((), ())
        time.sleep(TIMEOUT_S + 0.3)
    assert watch.look() == ((), ())


def test_where_no_process_can_be_seen_the_longest_wait_counts() -> None:
    watch = ChipWatch(TIMEOUT_S)
    watch.add(ChipReady(chip=0, pid=1, thread=1, boot="another machine"))

    with pytest.raises(ChipSilent) as caught:
        list(watch.receive(SlowHub(lambda _: False), (0,), 1.0))  # type: ignore[arg-type]
    assert (caught.value.chips, caught.value.silent_s) == ((0,), 1.0)
    assert watch.look() == ((), ())


@pytest.mark.process
def test_chips_that_are_asked_nothing_are_found_when_they_stop_or_end(processes: Any) -> None:
    resting, stopped, ended = (processes(REST) for _ in range(3))
    watch = watch_of(resting, stopped, ended)
    assert watch.look() == ((), ())

    stopped.send_signal(signal.SIGSTOP)
    ended.kill()
    ended.wait()
    assert watch.look() == ((), ()), "not again so soon"
    time.sleep(0.3)
    assert watch.look() == ((2,), ()), "a stop may be over soon"
    time.sleep(TIMEOUT_S)
    assert watch.look() == ((2,), (1,))

    stopped.send_signal(signal.SIGCONT)
    watch.forget(2)
    time.sleep(0.3)
    assert watch.look() == ((), ())
