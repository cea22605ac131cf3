"""The actor's loop, without Ray: it waits for commands, answers each, and ends as it should."""

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from emulator.actors.channel import Channel
from emulator.actors.chip_worker import ChipWorker
from emulator.actors.codec import Message
from emulator.actors.step_exchange import SharedExchange
from emulator.chip.chip_share import ChipShare
from emulator.chip.commands import (
    BeginStep,
    Combine,
    Hang,
    JoinStep,
    LoadExperts,
    ReportCondition,
    RunExperts,
    StopChip,
)
from emulator.chip.effects import (
    ChipFailed,
    ChipReady,
    CommandDone,
    Condition,
    Dispatch,
    ExpertRows,
)
from emulator.compute.checkpoint import read_architecture
from emulator.errors import CheckpointError, ChipLost, ChipSilent
from emulator.specs.placement import ExpertPlacement
from emulator.specs.step import NewRequest, RankStep, Scheduled
from tests.emulator.chip.in_process import GREEDY, NO_BITMASK

# The loop handles what ends it; nothing may end it unseen.
pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
]

WAIT_S = 30.0
HIDDEN = 64


class Started:
    """One actor on a channel, chip 3 with two experts in each layer."""

    def __init__(self, directory: Path) -> None:
        self.hub = Channel()
        layers = read_architecture(directory).layers
        self.actor = ChipWorker(
            chip=3,
            address=self.hub.address,
            key=self.hub.key,
            share=ChipShare(
                weights_dir=str(directory),
                experts=[[4, 9]] * layers,
                kv_blocks=8,
                block_tokens=16,
            ),
        )
        self.thread = threading.Thread(target=self.actor.serve, daemon=True)
        self.thread.start()
        self.hub.accept([3], WAIT_S)
        self.first = self.answer()

    def answer(self) -> Message:
        ((chip, message),) = self.hub.receive([3], WAIT_S)
        assert chip == 3
        return message

    def ask(self, command: Message) -> Message:
        self.hub.send(3, command)
        return self.answer()

    def has_ended(self) -> bool:
        self.thread.join(WAIT_S)
        return not self.thread.is_alive()


@pytest.fixture
def started(small_checkpoints: Mapping[str, Path]) -> Iterator[Started]:
    started = Started(small_checkpoints["tied"])
    yield started
    started.hub.close()
    assert started.has_ended()


def run_experts() -> RunExperts:
    return RunExperts(
        layer=0,
        rows=np.ones((2, HIDDEN), dtype=np.float32),
        row_of_pair=np.array([0, 1, 1]),
        counts=np.array([2, 1]),
    )


def test_it_says_its_number_when_it_has_loaded(started: Started) -> None:
    assert started.first == ChipReady(chip=3)
    started.actor.wait_loaded()


def test_every_command_is_answered_with_the_chips_effect(started: Started) -> None:
    rows = started.ask(run_experts())
    step = RankStep(
        rank=3,
        new=[
            NewRequest(
                request_id="r", token_ids=[5, 6], prompt_tokens=2, sampling=GREEDY, block_ids=[1]
            )
        ],
        scheduled=[Scheduled(request_id="r", first_position=0, new_tokens=2)],
        finished=[],
    )
    dispatch = started.ask(BeginStep(step=step, grammar_bitmask=NO_BITMASK))

    assert isinstance(rows, ExpertRows)
    assert rows.rows.shape == (3, HIDDEN)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.hidden.shape == (2, HIDDEN)


def test_a_command_that_fails_is_answered_with_the_reason_and_ends_the_chip(
    started: Started,
) -> None:
    nothing = np.zeros((1, 4, HIDDEN), dtype=np.float32)

    answer = started.ask(Combine(layer=0, expert_rows=nothing))

    assert isinstance(answer, ChipFailed)
    assert "a combine came outside a step" in answer.reason
    assert started.has_ended()


def test_stop_ends_it_without_an_answer(started: Started) -> None:
    started.hub.send(3, StopChip())

    assert started.has_ended()
    with pytest.raises(ChipLost, match="chip 3 lost"):
        started.answer()


def test_a_chip_that_hangs_says_nothing_to_any_command_until_the_hub_lets_it_go(
    started: Started,
) -> None:
    started.hub.send(3, Hang())
    started.hub.send(3, run_experts())

    with pytest.raises(ChipSilent):
        list(started.hub.receive([3], 0.3))
    assert started.thread.is_alive()
    started.hub.forget(3)
    assert started.has_ended()


def test_experts_are_read_from_the_checkpoint_when_told(
    started: Started, small_checkpoints: Mapping[str, Path]
) -> None:
    other = Started(small_checkpoints["tied"])
    try:
        four, nine = rows_of(other.ask(run_experts()))[[0, 2]]
        # Expert 9 into both slots, then 4 back into the second: their rows change places.
        assert started.ask(LoadExperts(layer=0, slots=[0, 1], experts=[9, 4])) == CommandDone()
        rows = rows_of(started.ask(run_experts()))
    finally:
        other.hub.close()

    assert (rows[0] == nine).all()
    assert (rows[2] == four).all()
    assert not (four == nine).all()


def rows_of(answer: Message) -> np.ndarray:
    assert isinstance(answer, ExpertRows)
    return answer.rows


def test_a_checkpoint_that_is_not_on_the_chips_node_is_one_clear_line(tmp_path: Path) -> None:
    share = ChipShare(weights_dir=str(tmp_path / "x"), experts=[[]], kv_blocks=1, block_tokens=16)
    message = rf"x: there is no such directory on {socket.gethostname()}"

    with pytest.raises(CheckpointError, match=message):
        ChipWorker(chip=0, address="/nowhere", key=b"", share=share)


def test_a_hub_that_is_gone_ends_it(started: Started) -> None:
    started.hub.close()

    assert started.has_ended()


def test_a_hub_that_is_gone_ends_it_also_while_it_waits_for_other_chips(
    started: Started, small_checkpoints: Mapping[str, Path]
) -> None:
    arch = read_architecture(small_checkpoints["tied"])
    placement = ExpertPlacement.even(
        layers=len(arch.expert_layers), experts=arch.experts, chips=4, ep=4
    )
    exchange = SharedExchange(
        placement, arch, tp=1, slots_max=placement.slots, send_all=started.hub.send_all
    )
    step = RankStep(
        rank=0,
        new=[],
        scheduled=[Scheduled(request_id="r", first_position=0, new_tokens=1)],
        finished=[],
    )
    begin = {0: BeginStep(step=step, grammar_bitmask=NO_BITMASK)}  # for a chip that is not there
    commands = exchange.attempt(begin, [0, 3]).start()
    assert commands == {**begin, 3: JoinStep()}
    started.hub.send(3, commands[3])
    while not exchange.waits(3):
        time.sleep(0.01)

    started.hub.close()

    assert started.has_ended()


def test_it_says_how_its_process_is_and_what_the_chip_has_computed(started: Started) -> None:
    before = started.ask(ReportCondition())
    started.ask(run_experts())
    after = started.ask(ReportCondition())

    assert isinstance(before, Condition)
    assert isinstance(after, Condition)
    assert 1_000_000 < before.pss_bytes <= before.rss_bytes
    assert before.cpu_s < after.cpu_s < WAIT_S
