"""The roll-out of weights, block by block, as the engine and its scheduler speak of it."""

from pathlib import Path
from typing import Any

import pytest

from emulator.chip.commands import LoadWeights
from emulator.errors import CheckpointError
from emulator.fleet import Fleet
from serving.engine.scheduler_state import RankQueues
from serving.wire.control_call import (
    ControlReply,
    PublishRequest,
    Refusal,
    RollbackRequest,
    VersionReport,
)
from tests.serving.plugin.other_weights import other_weights
from tests.serving.plugin.running_engine import Running, heard, lose

pytestmark = pytest.mark.long

IDLE = RankQueues(running=0, waiting=0, kv_blocks_used=0)
BUSY = RankQueues(running=1, waiting=0, kv_blocks_used=1)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_weights(tmp_path_factory.mktemp("weights") / "other", seed=2)


class Rolling:
    """A running engine, and what its scheduler says before each step."""

    def __init__(self, **settings: Any) -> None:
        self.running = Running(**settings)
        self.ranks = self.running.parts.deployment.partition.ranks
        self.busy: set[int] = set()
        self.closed: tuple[int, ...] = ()
        self.wake = self.running.engine._wake
        self.hear()

    def hear(self) -> None:
        """One exchange: the scheduler speaks, the engine reports."""
        queues = tuple(BUSY if rank in self.busy else IDLE for rank in range(self.ranks))
        self.wake.grant()
        engine = self.running.engine
        engine.hear(heard(rank_states=queues, closed_ranks=self.closed))
        report = engine.report()
        self.closed, self.renewed, self.weights = (
            report.closed_ranks,
            report.renewed_ranks,
            report.weights,
        )

    def publish(self, directory: Path) -> ControlReply:
        return self.running.ask(PublishRequest(weights_dir=str(directory)))

    def versions(self) -> list[int]:
        return [rank.version for rank in self.running.state().ranks]


def test_blocks_close_empty_read_and_open_one_after_the_other(other: Path) -> None:
    rolling = Rolling(chips=4, ep=2)
    rolling.busy = {1, 2}
    reply = rolling.publish(other)
    assert isinstance(reply, VersionReport)
    assert (reply.version, reply.waiting_blocks) == (2, 2)
    assert rolling.wake.wanted  # an idle scheduler would not come by itself

    rolling.hear()
    assert (rolling.closed, rolling.renewed) == ((0, 1), ())
    rolling.hear()
    assert rolling.closed == (0, 1)  # rank 1 has a request
    assert not rolling.wake.wanted  # whose steps come by themselves
    assert rolling.versions() == [1, 1, 1, 1]
    rolling.busy = {2}
    rolling.hear()
    assert rolling.renewed == (0, 1)
    assert rolling.versions() == [2, 2, 1, 1]
    assert rolling.weights[0] == reply.weights != rolling.weights[2]
    rolling.running.step(2)  # time passes, and the first block has read
    rolling.hear()
    assert (rolling.closed, rolling.renewed) == ((2, 3), ())
    rolling.busy = set()
    rolling.hear()
    assert rolling.renewed == (2, 3)
    rolling.hear()
    assert rolling.closed == ()
    assert rolling.versions() == [2, 2, 2, 2]
    assert not rolling.wake.wanted


def test_a_block_is_not_read_before_the_scheduler_keeps_requests_out_of_it(other: Path) -> None:
    rolling = Rolling(chips=2, ep=1)
    rolling.publish(other)
    rolling.hear()
    rolling.closed = ()  # as if a request were on its way to it
    rolling.hear()
    assert (rolling.renewed, rolling.versions()) == ((), [1, 1])


def test_reading_takes_time_in_which_the_other_blocks_serve(other: Path) -> None:
    rolling = Rolling(chips=2, ep=1)
    rolling.busy = {1}
    rolling.publish(other)
    rolling.hear()
    rolling.hear()
    assert (rolling.renewed, rolling.closed) == ((0,), (0,))
    rolling.hear()
    assert rolling.closed == (0,)  # no emulated time has passed
    before_s = rolling.running.state().emulated_s
    report = rolling.running.step(1)
    (_, second) = rolling.running.state().versions
    assert second.read_s > 0
    assert second.bytes_storage > 0
    assert second.joules > 0
    # The step of the other block is not held up.
    assert report.snapshot.pause_s == 0
    while rolling.running.state().emulated_s - before_s < second.read_s:
        rolling.running.step(1)
    rolling.hear()
    assert rolling.closed == (1,)


def test_where_nobody_else_serves_reading_holds_the_next_step_up(other: Path) -> None:
    rolling = Rolling(chips=2, ep=2)
    rolling.publish(other)
    rolling.hear()
    rolling.hear()
    assert (rolling.renewed, rolling.closed) == ((0, 1), ())
    report = rolling.running.step(0, 1)
    (_, second) = rolling.running.state().versions
    assert report.snapshot.pause_s == pytest.approx(second.read_s)


def test_the_same_weights_again_are_the_same_version(other: Path) -> None:
    rolling = Rolling(chips=2, ep=1)
    first = rolling.publish(other)
    second = rolling.publish(other)
    assert first == second
    assert [state.number for state in rolling.running.state().versions] == [1, 2]


def test_going_back_is_a_roll_out_of_its_own_and_numbers_stay_honest(
    other: Path, tmp_path: Path
) -> None:
    rolling = Rolling(chips=2, ep=1)
    third = other_weights(tmp_path / "third", seed=3)

    def settle() -> list[int]:
        for _ in range(8):
            rolling.hear()
        return rolling.versions()

    assert isinstance(rolling.running.ask(RollbackRequest()), Refusal)
    rolling.publish(other)
    assert settle() == [2, 2]
    back = rolling.running.ask(RollbackRequest())
    assert isinstance(back, VersionReport)
    assert back.version == 1
    assert settle() == [1, 1]
    rolling.publish(third)
    assert settle() == [3, 3]
    rolling.running.ask(RollbackRequest())
    assert settle() == [1, 1]
    refusal = rolling.running.ask(RollbackRequest())
    assert isinstance(refusal, Refusal)
    assert refusal.message == "version 1 has none before it that could be served again"


def test_it_does_not_go_back_to_weights_that_have_changed(tmp_path: Path, other: Path) -> None:
    rolling = Rolling(chips=2, ep=1)
    changing = other_weights(tmp_path / "changing", seed=4)
    rolling.publish(changing)
    rolling.publish(other)
    path = changing / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")

    refusal = rolling.running.ask(RollbackRequest())
    assert isinstance(refusal, Refusal)
    assert "no longer holds the weights of version 2" in refusal.message


def test_another_target_in_the_middle_is_gone_to_from_where_it_is(
    other: Path, tmp_path: Path
) -> None:
    rolling = Rolling(chips=3, ep=1)
    third = other_weights(tmp_path / "third", seed=3)
    rolling.publish(other)
    rolling.hear()
    rolling.hear()
    rolling.publish(third)
    for _ in range(12):
        rolling.hear()
    assert rolling.versions() == [3, 3, 3]


def test_a_block_that_is_down_changes_at_once_and_comes_back_with_it(other: Path) -> None:
    rolling = Rolling(chips=2, ep=1)
    rolling.running.inject(lose(1))
    rolling.busy = {0}
    rolling.running.step(0)
    rolling.publish(other)
    rolling.hear()
    assert rolling.versions() == [1, 2]
    assert rolling.closed == (0,)


@pytest.mark.parametrize("chip", [0, 1])
def test_weights_that_a_chip_cannot_read_are_given_up_and_say_why(
    other: Path, monkeypatch: pytest.MonkeyPatch, chip: int
) -> None:
    rolling = Rolling(chips=2, ep=1)
    renew = Fleet.renew

    def fail(fleet: Fleet, chips: Any, weights_dir: Path) -> None:
        if chip in chips and weights_dir == other:
            raise CheckpointError("there is no such directory on the other node")
        renew(fleet, chips, weights_dir)

    monkeypatch.setattr(Fleet, "renew", fail)
    rolling.publish(other)
    for _ in range(8):
        rolling.hear()
    assert rolling.versions() == [1, 1]
    assert rolling.closed == ()
    first, second = rolling.running.state().versions
    assert (first.target, second.target) == (True, False)
    assert second.failure == "there is no such directory on the other node"


def test_a_chip_that_dies_of_reading_is_lost_and_the_others_serve_the_new_weights(
    other: Path,
) -> None:
    rolling = Rolling(chips=4, ep=2)
    rolling.running.parts.fleet.doom(1, LoadWeights)
    rolling.publish(other)
    for _ in range(10):
        rolling.hear()
    state = rolling.running.state()
    assert rolling.versions() == [2, 2, 2, 2]
    assert [rank.up for rank in state.ranks] == [True, False, True, True]
    assert [record.fault.chip for record in state.faults] == [1]
