"""A Ray of our own: its chips are forked, can be killed one by one, and nothing is left of it."""

import os
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from emulator.actors.channel import ChipLost, Hub
from emulator.actors.ray_session import RaySession
from emulator.chip.chip_share import ChipShare
from emulator.chip.effects import Ready
from emulator.data import SMALL_MOE_DIR

pytestmark = pytest.mark.fleet

WAIT_S = 60.0
SHARE = ChipShare(
    weights_dir=str(SMALL_MOE_DIR), experts=[[0], [1], [2], [3]], kv_blocks=4, block_tokens=32
)


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.close()


def chip_processes() -> set[psutil.Process]:
    """Our descendants that hold a chip, forked or not."""
    return {
        process
        for process in psutil.Process().children(recursive=True)
        if process.name().startswith("ray::ChipActor")
    }


def comes_true(condition: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.05)
    return condition()


def test_its_chips_are_forked_end_one_by_one_and_all_ends_with_it(hub: Hub) -> None:
    environment, interpreter = dict(os.environ), sys.executable
    before = set(psutil.Process().children(recursive=True))
    session = RaySession()
    try:
        session.start()
        (node,) = session.nodes()
        assert node.is_here
        assert session.hub_host() is None
        handles = [
            session.start_chip(
                node=session.place_chips(2)[chip],
                chip=chip,
                address=hub.address,
                key=hub.key,
                share=SHARE,
            )
            for chip in range(2)
        ]
        hub.accept(range(2), WAIT_S)
        assert dict(hub.receive(range(2), WAIT_S)) == {0: Ready(chip=0), 1: Ready(chip=1)}

        # Both come from one process that is neither Ray's daemon nor this one: the nursery.
        (parent,) = {process.parent() for process in chip_processes()}
        assert parent is not None
        assert any(word.endswith("worker_nursery.py") for word in parent.cmdline())

        session.kill(handles[1])
        session.kill(handles[1])
        with pytest.raises(ChipLost) as caught:
            list(hub.receive([1], WAIT_S))
        assert caught.value.chips == (1,)
        assert comes_true(lambda: len(chip_processes()) == 1)
        assert hub.connected == {0}
    finally:
        session.stop()
        session.stop()

    assert comes_true(lambda: set(psutil.Process().children(recursive=True)) <= before)
    added = {name for name in os.environ if name not in environment}
    assert {name for name in added if name.startswith("RAY_")} <= {"RAY_AUTH_MODE"}
    assert sys.executable == interpreter


def test_stopping_what_was_not_started_does_nothing() -> None:
    RaySession().stop()
