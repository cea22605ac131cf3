import contextlib
import pickle
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.actors import chip_server
from emulator.actors.channel import Channel, ChannelClient, Drained
from emulator.actors.handshake import ServerHandshake
from emulator.chip.commands import Combine
from emulator.chip.effects import ChipReady, ExpertRows
from emulator.errors import ChannelError, ChipLost, ChipSilent

WAIT_S = 30.0

Chip = Callable[[ChannelClient], None]


def echo(client: ChannelClient) -> None:
    """Send the rows of each command back, doubled, until told to stop."""
    while isinstance(command := client.receive(), Combine):
        client.send(ExpertRows(layer=command.layer, rows=2 * command.expert_rows[0]))


def silent(client: ChannelClient) -> None:
    """Take commands and say nothing."""
    while isinstance(client.receive(), Combine):
        pass


def gone(client: ChannelClient) -> None:
    """Close the channel after the first command."""
    client.receive()


def rows_of(answer: object) -> float:
    assert isinstance(answer, ExpertRows)
    return float(answer.rows[0, 0])


class Chips:
    """Chips in threads of this process, connected to one hub."""

    def __init__(self, host: str | None = None) -> None:
        self.hub = Channel(host)
        self._threads: list[threading.Thread] = []

    def start(self, *chips: Chip) -> None:
        for number, chip in enumerate(chips):
            self.connect(number, chip)
        self.hub.accept(range(len(chips)), WAIT_S)

    def connect(self, number: int, chip: Chip, key: bytes | None = None) -> None:
        """Let a chip knock at the hub; it is not let in before `accept`."""
        arguments = (number, chip, self.hub.key if key is None else key)
        thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run(self, number: int, chip: Chip, key: bytes) -> None:
        try:
            client = ChannelClient(self.hub.address, key, number)
        except OSError:  # it was refused
            return
        try:
            chip(client)
        except (EOFError, OSError):  # the hub has closed the channel
            pass
        finally:
            client.close()

    def stop(self) -> None:
        self.hub.close()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.fixture(params=[None, "127.0.0.1"], ids=["unix", "tcp"])
def chips(request: pytest.FixtureRequest) -> Iterator[Chips]:
    chips = Chips(request.param)
    yield chips
    chips.stop()


def combine(value: float, rows: int = 2) -> Combine:
    return Combine(layer=5, expert_rows=np.full((1, rows, 3), value, dtype=np.float32))


@pytest.mark.process
def test_each_chip_gets_its_own_command_and_its_answer_carries_its_number(chips: Chips) -> None:
    chips.start(echo, echo, echo)

    for round_ in range(20):
        asked = {chip: combine(chip + 10 * round_) for chip in (2, 0, 1)}
        chips.hub.send_all(asked)
        answers = dict(chips.hub.receive(range(3), WAIT_S))

        assert sorted(answers) == [0, 1, 2]
        for chip, answer in answers.items():
            assert isinstance(answer, ExpertRows)
            assert answer.layer == 5
            assert (answer.rows == 2 * (chip + 10 * round_)).all()


@pytest.mark.process
def test_only_those_that_were_asked_are_waited_for(chips: Chips) -> None:
    chips.start(echo, silent, echo)

    chips.hub.send(2, combine(1.0))

    ((chip, answer),) = chips.hub.receive([2], WAIT_S)
    assert chip == 2
    assert isinstance(answer, ExpertRows)


@pytest.mark.process
def test_an_answer_that_comes_before_it_is_waited_for_is_kept(chips: Chips) -> None:
    chips.start(echo, echo)
    chips.hub.send_all({0: combine(1.0), 1: combine(2.0)})
    chips.hub.send(1, combine(3.0))

    first = [rows_of(answer) for _, answer in chips.hub.receive([0], WAIT_S)]
    later = [rows_of(answer) for _ in range(2) for _, answer in chips.hub.receive([1], WAIT_S)]

    assert first == [2.0]
    assert later == [4.0, 6.0]


@pytest.mark.process
def test_messages_far_larger_than_a_sockets_buffer_pass_both_ways(chips: Chips) -> None:
    chips.start(echo, echo)

    chips.hub.send_all({chip: combine(chip, rows=1_000_000) for chip in range(2)})

    for chip, answer in chips.hub.receive(range(2), WAIT_S):
        assert isinstance(answer, ExpertRows)
        assert answer.rows.shape == (1_000_000, 3)
        assert (answer.rows == 2 * chip).all()


# --- chips that say nothing, or are gone --------------------------------------------------------


@pytest.mark.process
def test_silent_chips_are_named(chips: Chips) -> None:
    chips.start(echo, silent, silent)
    chips.hub.send_all(dict.fromkeys(range(3), combine(1.0)))

    with pytest.raises(ChipSilent, match=r"chips 1, 2 silent for 0\.2 s") as caught:
        list(chips.hub.receive(range(3), 0.2))

    assert caught.value.chips == (1, 2)
    assert chips.hub.connected == {0, 1, 2}


@pytest.mark.process
def test_the_time_limit_is_for_silence_and_begins_again_with_each_answer(chips: Chips) -> None:
    def slow(client: ChannelClient) -> None:
        wait = threading.Event()
        client.receive()
        wait.wait(0.4)
        client.send(ChipReady(chip=1))
        silent(client)

    def slower(client: ChannelClient) -> None:
        wait = threading.Event()
        client.receive()
        wait.wait(0.8)
        client.send(ChipReady(chip=2))
        silent(client)

    chips.start(echo, slow, slower)
    chips.hub.send_all(dict.fromkeys(range(3), combine(1.0)))

    assert [chip for chip, _ in chips.hub.receive(range(3), 0.7)] == [0, 1, 2]


@pytest.mark.process
def test_chatter_of_others_does_not_prolong_the_wait_for_a_silent_chip(chips: Chips) -> None:
    chips.start(echo, silent)
    for _ in range(5):
        chips.hub.send(0, combine(1.0))
    began_s = time.monotonic()

    with pytest.raises(ChipSilent) as caught:
        list(chips.hub.receive([1], 0.3))

    assert caught.value.chips == (1,)
    assert 0.3 <= time.monotonic() - began_s < 5


@pytest.mark.process
def test_a_chip_that_closes_its_end_is_lost_and_named(chips: Chips) -> None:
    chips.start(echo, gone)
    chips.hub.send_all({1: combine(1.0)})

    with pytest.raises(ChipLost, match="chip 1 lost") as caught:
        list(chips.hub.receive([1], WAIT_S))
    assert caught.value.chips == (1,)
    assert chips.hub.connected == {0}
    for ask in (
        lambda: chips.hub.send(1, combine(1.0)),
        lambda: list(chips.hub.receive([0, 1], WAIT_S)),
    ):
        with pytest.raises(ChipLost, match="chip 1 lost"):
            ask()


@pytest.mark.process
def test_what_the_others_answer_after_a_loss_is_collected(chips: Chips) -> None:
    chips.start(echo, gone, silent, echo, gone)
    chips.hub.send_all({chip: combine(chip) for chip in range(5)})

    drained = chips.hub.drain([4, 3, 2, 1, 0, 9], 0.5)

    assert isinstance(drained, Drained)
    assert {chip: rows_of(reply) for chip, reply in drained.replies.items()} == {0: 0.0, 3: 6.0}
    assert drained.lost == (1, 4, 9)
    assert drained.silent == (2,)
    assert chips.hub.connected == {0, 2, 3}
    chips.hub.send(0, combine(5.0))
    assert [rows_of(answer) for _, answer in chips.hub.receive([0], WAIT_S)] == [10.0]


@pytest.mark.process
def test_one_lost_chip_does_not_keep_the_others_from_their_messages(chips: Chips) -> None:
    chips.start(echo, echo, echo)
    chips.hub.forget(0)
    chips.hub.forget(0)

    with pytest.raises(ChipLost) as caught:
        chips.hub.send_all({0: combine(1.0), 1: combine(1.0), 7: combine(1.0), 2: combine(2.0)})

    assert caught.value.chips == (0, 7)
    answers = {chip: rows_of(answer) for chip, answer in chips.hub.receive([1, 2], WAIT_S)}
    assert answers == {1: 2.0, 2: 4.0}


@pytest.mark.process
def test_another_takes_a_forgotten_chips_place_while_the_rest_stay_connected(chips: Chips) -> None:
    chips.start(echo, silent, echo)
    chips.hub.send_all(dict.fromkeys(range(3), combine(1.0)))
    chips.hub.drain(range(3), 0.2)

    chips.hub.forget(1)
    chips.connect(1, echo)
    chips.hub.accept([1], WAIT_S)

    chips.hub.send_all({chip: combine(chip) for chip in range(3)})
    answers = {chip: rows_of(answer) for chip, answer in chips.hub.receive(range(3), WAIT_S)}
    assert answers == {0: 0.0, 1: 2.0, 2: 4.0}


@pytest.mark.process
def test_a_chip_that_does_not_empty_its_socket_is_lost_not_waited_for(
    chips: Chips, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulator.actors.channel._STALL_TIMEOUT_S", 0.2)
    stay = threading.Event()
    chips.start(lambda _: assert_set(stay), echo)
    try:
        with pytest.raises(ChipLost, match="takes nothing") as caught:
            chips.hub.send_all({0: combine(1.0, rows=4_000_000), 1: combine(1.0)})
        assert caught.value.chips == (0,)
        assert [rows_of(answer) for _, answer in chips.hub.receive([1], WAIT_S)] == [2.0]
    finally:
        stay.set()


def assert_set(event: threading.Event) -> None:
    assert event.wait(WAIT_S)


@pytest.mark.parametrize("error", [ChipLost((3, 4), "gone"), ChipSilent((5,), 2.5)])
def test_its_errors_survive_the_way_between_processes(error: ChannelError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.chips == error.chips  # type: ignore[attr-defined]


# --- who is let in ------------------------------------------------------------------------------


def knock(address: str) -> socket.socket:
    """Connect as a stranger does who knows the address."""
    if address.startswith("/"):
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(address)
        return connected
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


@pytest.mark.process
def test_chips_that_do_not_connect_are_named(chips: Chips) -> None:
    chips.connect(1, silent)

    with pytest.raises(ChannelError, match=r"chips 0, 2 did not connect within 0\.3 s"):
        chips.hub.accept(range(3), 0.3)
    assert chips.hub.connected == {1}


@pytest.mark.process
def test_strangers_are_refused_and_hold_up_nobody(
    chips: Chips, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chip_server, "PROOF_TIMEOUT_S", 0.5)
    with contextlib.ExitStack() as strangers:
        quiet = [strangers.enter_context(knock(chips.hub.address)) for _ in range(20)]
        loud = strangers.enter_context(knock(chips.hub.address))
        loud.sendall(b"GET / HTTP/1.1\r\n" * 100)
        strangers.enter_context(knock(chips.hub.address)).close()
        chips.connect(0, silent, key=b"another key")
        began_s = time.monotonic()
        for number in range(2):
            chips.connect(number, echo)

        chips.hub.accept(range(2), WAIT_S)

        assert time.monotonic() - began_s < 0.5 + WAIT_S / 2
        chips.hub.send_all({chip: combine(chip) for chip in range(2)})
        assert len(list(chips.hub.receive(range(2), WAIT_S))) == 2
        with pytest.raises(ChannelError, match="chip 2 did not"):
            chips.hub.accept([2], 1.0)
        assert chips.hub.refused == 23
        for stranger in quiet:
            stranger.settimeout(WAIT_S)
            while stranger.recv(1_000):
                pass
        assert chips.hub.connected == {0, 1}


@pytest.mark.process
def test_a_chip_that_nobody_waits_for_is_refused_though_it_knows_the_key(chips: Chips) -> None:
    chips.start(echo)
    chips.connect(0, echo)
    chips.connect(7, echo)

    with pytest.raises(ChannelError, match="chip 1 did not"):
        chips.hub.accept([1], 0.5)

    assert chips.hub.refused == 2
    chips.hub.send(0, combine(4.0))
    assert [rows_of(answer) for _, answer in chips.hub.receive([0], WAIT_S)] == [8.0]


@pytest.mark.process
def test_of_too_many_at_the_door_the_oldest_must_go(
    chips: Chips, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chip_server, "PENDING_MAX", 3)
    with contextlib.ExitStack() as strangers:
        quiet = [strangers.enter_context(knock(chips.hub.address)) for _ in range(5)]
        with pytest.raises(ChannelError):
            chips.hub.accept([0], 0.3)

        assert chips.hub.refused == 2
        for stranger in quiet[:2]:
            stranger.settimeout(WAIT_S)
            while stranger.recv(1_000):
                pass


def test_a_chip_does_not_talk_to_a_hub_that_does_not_know_the_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()[:2]

        def pose() -> None:
            connected, _ = server.accept()
            with connected:
                connected.sendall(ServerHandshake(b"another key").greeting)
                connected.recv(1_000)
                connected.sendall(bytes(32))

        thread = threading.Thread(target=pose, daemon=True)
        thread.start()
        with pytest.raises(ConnectionError, match="the hub does not know the key"):
            ChannelClient(f"{host}:{port}", b"the key", 0)
        thread.join(WAIT_S)


class Bomb:
    """Unpickling it is noticed."""

    exploded = False

    @staticmethod
    def explode() -> None:
        Bomb.exploded = True

    def __reduce__(self) -> Any:
        return Bomb.explode, ()


@pytest.mark.process
def test_what_a_chip_sends_is_never_unpickled(chips: Chips) -> None:
    def pickles(client: ChannelClient) -> None:
        packet = pickle.dumps(Bomb())
        client._socket.send((16 + len(packet)).to_bytes(8, "little") + packet + bytes(8))
        silent(client)

    chips.start(pickles)

    with pytest.raises(ChannelError, match="cannot be decoded"):
        list(chips.hub.receive([0], WAIT_S))
    assert not Bomb.exploded


@pytest.mark.process
def test_the_hub_lies_where_only_its_user_can_go_and_nothing_is_left_of_it() -> None:
    hub = Channel()
    directory = Path(hub.address).parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [path.name for path in directory.iterdir()] == ["hub"]

    hub.close()
    hub.close()

    assert not directory.exists()


@pytest.mark.process
def test_every_hub_has_an_address_and_a_key_of_its_own() -> None:
    one, two = Channel(), Channel()
    try:
        assert one.address != two.address
        assert one.key != two.key
        assert len(one.key) == 32
    finally:
        one.close()
        two.close()


@pytest.mark.process
def test_a_chip_that_waits_learns_that_the_hub_is_gone() -> None:
    learnt: list[type[Exception]] = []

    def waits(client: ChannelClient) -> None:
        client.send(ChipReady(chip=0))
        try:
            client.receive()
        except (EOFError, ConnectionError) as error:
            learnt.append(type(error))

    chips = Chips()
    chips.start(waits)
    list(chips.hub.receive([0], WAIT_S))

    chips.stop()

    assert len(learnt) == 1
