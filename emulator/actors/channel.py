"""The step channel: one Unix socket from the executor's hub to each of its chips.

Python's own `multiprocessing.connection` frames and authenticates the messages. On 2 cores one
round trip to 4 chips takes 0.13 ms here, 0.33 ms over ZeroMQ, whose I/O threads wake each other,
and milliseconds as Ray calls (DECISIONS.md). The sockets lie in a directory that only their user
can enter; nothing listens on a network.
"""

import secrets
import selectors
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Client, Connection, Listener

from emulator.actors.codec import Codec, Message
from emulator.actors.scratch_directory import ScratchDirectory
from emulator.errors import ChannelError

_BACKLOG = 1_024
"""More chips than a machine has may connect at once."""


class Hub:
    """The executor's end: sends commands to chips by number, receives their effects.

    `address` and `key` are what a `Spoke` needs. A chip is reachable once `accept` has returned.
    """

    def __init__(self) -> None:
        self._directory = ScratchDirectory("ultraserve-")
        self.address = str(self._directory.path / "hub")
        self.key = secrets.token_bytes(32)
        self._listener = Listener(
            self.address, family="AF_UNIX", backlog=_BACKLOG, authkey=self.key
        )
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, Connection] = {}
        self._codec = Codec()

    def accept(self, chips: int, timeout_s: float) -> None:
        """Wait until `chips` chips have connected and said their number.

        Raises:
            ChannelError: some did not within `timeout_s`.
        """
        # The listener has no time limit of its own; a thread that nobody waits for any more ends
        # with the process.
        thread = threading.Thread(target=self._accept_all, args=(chips,), daemon=True)
        thread.start()
        thread.join(timeout_s)
        if len(self._connections) < chips:
            connected = len(self._connections)
            raise ChannelError(f"{chips - connected} of {chips} chips did not connect")
        for chip, connection in self._connections.items():
            self._selector.register(connection, selectors.EVENT_READ, chip)

    def _accept_all(self, chips: int) -> None:
        for _ in range(chips):
            connection = self._listener.accept()
            chip = int.from_bytes(connection.recv_bytes(8), "little")
            self._connections[chip] = connection

    def send(self, chip: int, message: Message) -> None:
        """Send `message` to `chip`; raises ChannelError when the chip is gone."""
        try:
            self._connections[chip].send_bytes(self._codec.encode(message))
        except (KeyError, OSError) as error:
            raise ChannelError(f"chip {chip} cannot be reached: {error}") from error

    def send_all(self, messages: Mapping[int, Message]) -> None:
        """Send one message to each chip of `messages`."""
        for chip, message in messages.items():
            self.send(chip, message)

    def receive(self, count: int, timeout_s: float) -> Iterator[tuple[int, Message]]:
        """Yield `count` messages as they come, each with its chip.

        Raises:
            ChannelError: nothing came within `timeout_s`, or a chip's end was closed.
        """
        left = count
        while left:
            ready = self._selector.select(timeout_s)
            if not ready:
                raise ChannelError(f"{left} of {count} chips silent for {timeout_s:g} s")
            for key, _ in ready:
                yield key.data, self._receive_one(key.data)
                left -= 1

    def _receive_one(self, chip: int) -> Message:
        try:
            packet = self._connections[chip].recv_bytes()
        except (EOFError, OSError) as error:
            raise ChannelError(f"chip {chip} has closed its channel") from error
        return self._codec.decode(packet)

    def close(self) -> None:
        """Close every socket and remove their directory; idempotent."""
        self._selector.close()
        for connection in self._connections.values():
            connection.close()
        self._listener.close()
        self._directory.remove()


class Spoke:
    """A chip's end of the channel."""

    def __init__(self, address: str, key: bytes, chip: int) -> None:
        self._connection = Client(address, family="AF_UNIX", authkey=key)
        self._connection.send_bytes(chip.to_bytes(8, "little"))
        self._codec = Codec()

    def send(self, message: Message) -> None:
        """Send an effect to the hub."""
        self._connection.send_bytes(self._codec.encode(message))

    def receive(self) -> Message:
        """Wait for the next command; raises EOFError when the hub is gone."""
        return self._codec.decode(self._connection.recv_bytes())

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()
