import multiprocessing.connection
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.actors.channel import Hub, Spoke
from emulator.chip.commands import Combine, Stop
from emulator.chip.effects import ExpertRows, Ready
from emulator.errors import ChannelError

WAIT_S = 30.0

Chip = Callable[[Spoke], None]


def echo(spoke: Spoke) -> None:
    """Send the rows of each command back, doubled, until told to stop."""
    while isinstance(command := spoke.receive(), Combine):
        spoke.send(ExpertRows(layer=command.layer, rows=2 * command.expert_rows[0]))


def silent(spoke: Spoke) -> None:
    """Take commands and say nothing."""
    while isinstance(spoke.receive(), Combine):
        pass


def gone(spoke: Spoke) -> None:
    """Close the channel after the first command."""
    spoke.receive()


class Chips:
    """Chips in threads of this process, connected to one hub."""

    def __init__(self) -> None:
        self.hub = Hub()
        self._threads: list[threading.Thread] = []

    def start(self, *chips: Chip) -> None:
        for number, chip in enumerate(chips):
            thread = threading.Thread(target=self._run, args=(number, chip), daemon=True)
            thread.start()
            self._threads.append(thread)
        self.hub.accept(len(chips), WAIT_S)

    def _run(self, number: int, chip: Chip) -> None:
        spoke = Spoke(self.hub.address, self.hub.key, number)
        try:
            chip(spoke)
        except (EOFError, OSError):  # the hub has closed the channel
            pass
        finally:
            spoke.close()

    def stop(self) -> None:
        self.hub.close()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.fixture
def chips() -> Iterator[Chips]:
    chips = Chips()
    yield chips
    chips.stop()


def combine(value: float, rows: int = 2) -> Combine:
    return Combine(layer=5, expert_rows=np.full((1, rows, 3), value, dtype=np.float32))


def test_each_chip_gets_its_own_command_and_its_answer_carries_its_number(chips: Chips) -> None:
    chips.start(echo, echo, echo)

    for round_ in range(20):
        asked = {chip: combine(chip + 10 * round_) for chip in (2, 0, 1)}
        chips.hub.send_all(asked)
        answers = dict(chips.hub.receive(3, WAIT_S))

        assert sorted(answers) == [0, 1, 2]
        for chip, answer in answers.items():
            assert isinstance(answer, ExpertRows)
            assert answer.layer == 5
            assert (answer.rows == 2 * (chip + 10 * round_)).all()


def test_only_those_that_were_asked_are_waited_for(chips: Chips) -> None:
    chips.start(echo, silent, echo)

    chips.hub.send(2, combine(1.0))

    ((chip, answer),) = chips.hub.receive(1, WAIT_S)
    assert chip == 2
    assert isinstance(answer, ExpertRows)


def test_messages_far_larger_than_a_sockets_buffer_pass_both_ways(chips: Chips) -> None:
    chips.start(echo, echo)

    chips.hub.send_all({chip: combine(chip, rows=1_000_000) for chip in range(2)})

    for chip, answer in chips.hub.receive(2, WAIT_S):
        assert isinstance(answer, ExpertRows)
        assert answer.rows.shape == (1_000_000, 3)
        assert (answer.rows == 2 * chip).all()


def test_a_silent_chip_is_a_channel_error(chips: Chips) -> None:
    chips.start(echo, silent)
    chips.hub.send_all({0: combine(1.0), 1: combine(1.0)})

    with pytest.raises(ChannelError, match=r"1 of 2 chips silent for 0\.05 s"):
        list(chips.hub.receive(2, 0.05))


def test_a_chip_that_closes_its_end_is_a_channel_error_that_names_it(chips: Chips) -> None:
    chips.start(echo, gone)
    chips.hub.send_all({1: combine(1.0)})

    with pytest.raises(ChannelError, match="chip 1 has closed"):
        list(chips.hub.receive(1, WAIT_S))
    with pytest.raises(ChannelError, match="chip 1 cannot be reached"):
        chips.hub.send(1, combine(1.0))


def test_a_chip_that_there_is_not_cannot_be_reached(chips: Chips) -> None:
    chips.start(echo)

    with pytest.raises(ChannelError, match="chip 7 cannot be reached"):
        chips.hub.send(7, Stop())


def test_chips_that_do_not_connect_are_counted(chips: Chips) -> None:
    with pytest.raises(ChannelError, match="2 of 2 chips did not connect"):
        chips.hub.accept(2, 0.05)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_does_not_know_the_key_is_not_let_in(chips: Chips) -> None:
    refused: list[Exception] = []

    def intrude() -> None:
        try:
            Spoke(chips.hub.address, b"another key", 0)
        except (multiprocessing.AuthenticationError, EOFError, OSError) as error:
            refused.append(error)

    thread = threading.Thread(target=intrude, daemon=True)
    thread.start()
    with pytest.raises(ChannelError, match="1 of 1 chips did not connect"):
        chips.hub.accept(1, 1.0)
    thread.join(WAIT_S)

    assert len(refused) == 1
    with pytest.raises(ChannelError):
        chips.hub.send(0, Stop())


class Bomb:
    """Unpickling it is noticed."""

    exploded = False

    @staticmethod
    def explode() -> None:
        Bomb.exploded = True

    def __reduce__(self) -> Any:
        return Bomb.explode, ()


def test_what_a_chip_sends_is_never_unpickled(chips: Chips) -> None:
    def pickles(spoke: Spoke) -> None:
        spoke._connection.send(Bomb())
        silent(spoke)

    chips.start(pickles)

    with pytest.raises(ChannelError, match="cannot be decoded"):
        list(chips.hub.receive(1, WAIT_S))
    assert not Bomb.exploded


def test_the_hub_lies_where_only_its_user_can_go_and_nothing_is_left_of_it() -> None:
    hub = Hub()
    directory = Path(hub.address).parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [path.name for path in directory.iterdir()] == ["hub"]

    hub.close()
    hub.close()

    assert not directory.exists()


def test_every_hub_has_an_address_and_a_key_of_its_own() -> None:
    one, two = Hub(), Hub()
    try:
        assert one.address != two.address
        assert one.key != two.key
        assert len(one.key) == 32
    finally:
        one.close()
        two.close()


def test_a_chip_that_waits_learns_that_the_hub_is_gone() -> None:
    learnt: list[type[Exception]] = []

    def waits(spoke: Spoke) -> None:
        spoke.send(Ready(chip=0))
        try:
            spoke.receive()
        except (EOFError, ConnectionError) as error:
            learnt.append(type(error))

    chips = Chips()
    chips.start(waits)
    list(chips.hub.receive(1, WAIT_S))

    chips.stop()

    assert len(learnt) == 1
