"""Nobody passes before all have arrived, and nobody who could pass is left behind."""

import socket
import threading
import time

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from emulator.actors.barrier_kernel import (
    BROKEN,
    BROKEN_BIT,
    DONE,
    GONE,
    arrive,
    break_word,
    closing_of,
    wait,
)

pytestmark = pytest.mark.process

NEVER = np.array([3_600, 0])
ROUNDS = 200
NOBODY = np.array([closing_of(-1)])
SOON = np.array([0, 20_000_000])

Words = NDArray[np.uint32]
Counts = NDArray[np.int64]


@njit(nogil=True)
def pass_all(
    words: Words, passed: Counts, mine: int, limit: Counts, turns: int, hub: Counts
) -> int:
    """Pass ROUNDS barriers with all others; returns how often another was not there yet."""
    word, early = words.ctypes.data, 0
    for number in range(1, ROUNDS + 1):
        passed[mine] = number
        arrive(word, len(passed) * number)
        if wait(word, len(passed) * number, turns, limit.ctypes.data, hub.ctypes.data) != 0:
            return -1
        for other in range(len(passed)):
            early += passed[other] < number
    return early


@njit(nogil=True)
def arrive_at(words: Words, target: int) -> bool:
    arrived: bool = arrive(words.ctypes.data, target)
    return arrived


@njit(nogil=True)
def wait_at(words: Words, target: int, limit: Counts, hub: Counts) -> int:
    outcome: int = wait(words.ctypes.data, target, 0, limit.ctypes.data, hub.ctypes.data)
    return outcome


@njit(nogil=True)
def break_at(words: Words) -> None:
    break_word(words.ctypes.data)


class Waiting:
    """A thread that waits for `target` at the first of `words`."""

    def __init__(
        self, words: Words, target: int, limit: Counts = NEVER, hub_socket: int = -1
    ) -> None:
        self._outcome = -1
        hub = np.array([closing_of(hub_socket)])
        self._thread = threading.Thread(
            target=self._wait, args=(words, target, limit, hub), daemon=True
        )
        self._thread.start()

    def _wait(self, words: Words, target: int, limit: Counts, hub: Counts) -> None:
        self._outcome = wait_at(words, target, limit, hub)

    def outcome(self) -> int:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self._outcome


@pytest.mark.parametrize("turns", [0, 30])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_all_pass_together_each_time(count: int, turns: int) -> None:
    words, passed = np.zeros(1, np.uint32), np.zeros(count, np.int64)
    early = [-1] * count

    def run(mine: int) -> None:
        early[mine] = pass_all(words, passed, mine, NEVER, turns, NOBODY)

    threads = [threading.Thread(target=run, args=(mine,), daemon=True) for mine in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert early == [0] * count
    assert words[0] == ROUNDS * count


def test_who_waits_is_woken_by_the_last_to_arrive() -> None:
    words = np.zeros(1, np.uint32)
    waiting = [Waiting(words, 2) for _ in range(3)]
    assert arrive_at(words, 2)
    time.sleep(0.05)
    assert all(each._thread.is_alive() for each in waiting)

    assert arrive_at(words, 2)

    assert [each.outcome() for each in waiting] == [DONE] * 3


def test_a_wait_ends_when_the_other_end_of_a_socket_has_closed_and_not_before() -> None:
    words, (ours, theirs) = np.zeros(1, np.uint32), socket.socketpair()
    theirs.sendall(b"not read yet")
    with ours, theirs:
        waiting = Waiting(words, 1, SOON, ours.fileno())
        time.sleep(10 * SOON[1] / 1e9)
        assert waiting._thread.is_alive()

        theirs.close()

        assert waiting.outcome() == GONE


def test_who_is_late_is_waited_for() -> None:
    words = np.zeros(1, np.uint32)
    waiting = Waiting(words, 1, SOON)
    time.sleep(5 * SOON[1] / 1e9)
    assert waiting._thread.is_alive()

    assert arrive_at(words, 1)

    assert waiting.outcome() == DONE


def test_a_broken_word_wakes_all_and_takes_nobody_any_more() -> None:
    words = np.zeros(1, np.uint32)
    waiting = [Waiting(words, 2) for _ in range(3)]
    assert arrive_at(words, 2)
    time.sleep(0.05)

    break_at(words)

    assert [each.outcome() for each in waiting] == [BROKEN] * 3
    assert not arrive_at(words, 2)
    assert words[0] == BROKEN_BIT + 1
    assert wait_at(words, 2, NEVER, NOBODY) == BROKEN


def test_what_was_complete_before_it_broke_stays_complete() -> None:
    words = np.zeros(1, np.uint32)
    assert arrive_at(words, 1)
    break_at(words)

    assert wait_at(words, 1, NEVER, NOBODY) == DONE
    assert wait_at(words, 2, NEVER, NOBODY) == BROKEN
