"""The step channel: one socket from the executor's hub to each chip.

Unix sockets in a private directory within a Ray node, TCP between nodes. Both ends prove that they
know a random key, which travels over Ray's authenticated calls (see handshake). Lost and silent
chips are different errors; the other connections stay.
"""

import contextlib
import secrets
import selectors
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from emulator.actors.chip_server import ChipServer
from emulator.actors.codec import Codec, Message
from emulator.actors.handshake import GREETING_BYTES, WELCOME_BYTES, ClientHandshake
from emulator.actors.packet_socket import PacketSocket, read_exactly
from emulator.actors.scratch_directory import ScratchDirectory
from emulator.errors import ChannelError, ChipLost, ChipSilent, chip_names

_BACKLOG: Final = 1_024
"""More chips than a machine has may connect at once."""

_STALL_TIMEOUT_S: Final = 10.0
"""Longest wait within a packet; megabytes take milliseconds (assumed: a longer stall is a loss)."""

_CONNECT_TIMEOUT_S: Final = 600.0
"""A chip's wait for the hub's handshake, which may await the slowest of 144 chips to load."""


_CLOSED: Final = "the hub has closed the channel"

_EARLY_MESSAGES_MAX: Final = 16
"""Unread answers per chip, which answers each command once; more drop the chip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Outcome of the awaited chips, each in one of the three."""

    replies: dict[int, Message]
    lost: tuple[int, ...]
    silent: tuple[int, ...]


class Channel:
    """The executor's end: sends commands by chip number, receives effects.

    `address` and `key` are for a `ChannelClient`. `host`: this node's address for chips on other
    nodes; None listens on a Unix socket.
    """

    def __init__(self, host: str | None = None) -> None:
        self._directory = ScratchDirectory("ultraserve-") if host is None else None
        self.key = secrets.token_bytes(32)
        if self._directory is not None:
            self._listener = socket.socket(socket.AF_UNIX)
            self.address = str(self._directory.path / "hub")
            self._listener.bind(self.address)
        else:
            self._listener = socket.socket(socket.AF_INET)
            self._listener.bind((host, 0))
            bound_host, port = self._listener.getsockname()
            self.address = f"{bound_host}:{port}"
        self._listener.listen(_BACKLOG)
        self._server = ChipServer(self._listener, self.key)
        self._selector = selectors.DefaultSelector()
        self._sockets: dict[int, PacketSocket] = {}
        self._aside: dict[int, list[Message]] = {}
        self._codec = Codec()

    @property
    def is_on_one_host(self) -> bool:
        """Whether all chips are on this host."""
        return self._directory is not None

    @property
    def connected(self) -> frozenset[int]:
        """The chips not known to be lost."""
        return frozenset(self._sockets)

    @property
    def refused(self) -> int:
        """Connections refused: without the key, or of unexpected chips."""
        return self._server.refused

    def accept(self, chips: Collection[int], timeout_s: float) -> None:
        """Wait until each of `chips`, perhaps replacements, has connected and proved the key.

        Other connections are refused and delay no chip. Raises ChannelError with the missing chips
        after `timeout_s`.
        """
        missing = set(chips)
        assert not missing & self._sockets.keys(), "a chip connects once"
        for chip, connected in self._server.admit(missing, timeout_s):
            missing.discard(chip)
            self._sockets[chip] = PacketSocket(connected, _STALL_TIMEOUT_S)
            self._selector.register(self._sockets[chip], selectors.EVENT_READ, chip)
        if missing:
            names = chip_names(tuple(sorted(missing)))
            raise ChannelError(f"{names} did not connect within {timeout_s:g} s")

    def send(self, chip: int, message: Message) -> None:
        """Send `message` to `chip`; raises ChipLost when it cannot take it."""
        packet = self._codec.encode(message)
        try:
            self._sockets[chip].send(packet)
        except KeyError as error:
            raise ChipLost((chip,), "it is not connected") from error
        except OSError as error:
            self.forget(chip)
            raise ChipLost((chip,), f"it cannot be reached ({error})") from error

    def send_all(self, messages: Mapping[int, Message]) -> None:
        """Send each chip its message; raises one ChipLost after trying all."""
        lost = []
        for chip, message in messages.items():
            try:
                self.send(chip, message)
            except ChipLost as error:
                lost.append((chip, error.reason))
        if lost:
            raise ChipLost(tuple(chip for chip, _ in lost), lost[0][1])

    def receive(self, chips: Collection[int], timeout_s: float) -> Iterator[tuple[int, Message]]:
        """Yield one message of each of `chips`, in order of arrival.

        Raises:
            ChipLost: a connection is gone; others may still answer (`drain`).
            ChipSilent: no message for `timeout_s`; names all awaited chips.
            ChannelError: a message cannot be decoded.
        """
        left = set(chips)
        gone = left - self._sockets.keys()
        if gone:
            raise ChipLost(tuple(sorted(gone)), "not connected")
        end_s = time.monotonic() + timeout_s
        while left:
            arrived = self._arrived(left, end_s - time.monotonic())
            for chip in arrived:
                left.discard(chip)
                yield chip, self._take(chip)
            now_s = time.monotonic()
            if arrived:
                end_s = now_s + timeout_s
            elif now_s >= end_s:
                raise ChipSilent(tuple(sorted(left)), timeout_s)

    def drain(self, chips: Collection[int], timeout_s: float) -> Drained:
        """Collect one message of each of `chips` within `timeout_s`; missing ones are no error."""
        left = set(chips)
        lost = left - self._sockets.keys()
        left -= lost
        replies: dict[int, Message] = {}
        end_s = time.monotonic() + timeout_s
        while left and (wait_s := end_s - time.monotonic()) > 0:
            for chip in self._arrived(left, wait_s):
                left.discard(chip)
                try:
                    replies[chip] = self._take(chip)
                except ChipLost:
                    lost.add(chip)
        return Drained(replies=replies, lost=tuple(sorted(lost)), silent=tuple(sorted(left)))

    def _arrived(self, chips: set[int], timeout_s: float) -> list[int]:
        """Wait for messages or losses of `chips` and return those chips; keeps others' messages."""
        if self._aside and (early := [chip for chip in chips if self._aside.get(chip)]):
            return early
        ready = [key.data for key, _ in self._selector.select(max(0.0, timeout_s))]
        for chip in ready:
            if chip not in chips:
                self._set_aside(chip)
        return [chip for chip in ready if chip in chips]

    def _set_aside(self, chip: int) -> None:
        early = self._aside.setdefault(chip, [])
        if len(early) >= _EARLY_MESSAGES_MAX:
            self.forget(chip)
            return
        with contextlib.suppress(ChipLost):  # who asks it next will hear of it
            early.append(self._receive_one(chip))

    def _take(self, chip: int) -> Message:
        early = self._aside.get(chip)
        return early.pop(0) if early else self._receive_one(chip)

    def _receive_one(self, chip: int) -> Message:
        try:
            packet = self._sockets[chip].receive()
        except (EOFError, OSError) as error:
            self.forget(chip)
            raise ChipLost((chip,), str(error)) from error
        return self._codec.decode(packet)

    def forget(self, chip: int) -> None:
        """Close the connection to `chip`, which ends its actor; idempotent."""
        self._aside.pop(chip, None)
        connected = self._sockets.pop(chip, None)
        if connected is not None:
            self._selector.unregister(connected)
            connected.close()

    def close(self) -> None:
        """Close all sockets and remove their directory; idempotent."""
        for chip in list(self._sockets):
            self.forget(chip)
        self._selector.close()
        self._server.close()
        self._listener.close()
        if self._directory is not None:
            self._directory.remove()


class HubGone(EOFError):
    """The hub has closed the channel in the middle of a command."""


class ChannelClient:
    """A chip's end of the channel.

    Raises ConnectionError when `address` is no hub with `key`, TimeoutError without its handshake.
    """

    def __init__(self, address: str, key: bytes, chip: int) -> None:
        connected = _connect(address)
        try:
            _introduce(connected, ClientHandshake(key, chip))
        except BaseException:
            connected.close()
            raise
        self._socket = PacketSocket(connected)
        self._codec = Codec()

    def send(self, message: Message) -> None:
        """Send an effect to the hub."""
        self._socket.send(self._codec.encode(message))

    def receive(self) -> Message:
        """Wait for the next command; raises EOFError when the hub is gone."""
        return self._codec.decode(self._socket.receive())

    def fileno(self) -> int:
        """The socket's file descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _connect(address: str) -> socket.socket:
    if address.startswith("/"):
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(_CONNECT_TIMEOUT_S)
        connected.connect(address)
        return connected
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S)


def _introduce(connected: socket.socket, handshake: ClientHandshake) -> None:
    greeting = read_exactly(connected, GREETING_BYTES, closed=_CLOSED)
    connected.sendall(handshake.claim(greeting))
    handshake.check(read_exactly(connected, WELCOME_BYTES, closed=_CLOSED))
