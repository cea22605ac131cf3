"""The step channel: ZeroMQ between the executor's hub and its chips.

Ray calls cost 32 ms for one round trip to 36 chips, these 4 ms (DECISIONS.md). The hub's socket is
a Unix socket in a directory that only its user can enter, so nothing listens on a network.
"""

from collections.abc import Iterator, Mapping

import zmq

from emulator.actors.codec import Codec, Message
from emulator.actors.scratch_directory import ScratchDirectory
from emulator.errors import ChannelError

_COPY_BELOW_BYTES = 65_536
"""Frames below this size are copied by ZeroMQ; above it a reference is cheaper than a copy."""


class Hub:
    """The executor's end: sends commands to chips by number, receives their effects.

    Raises:
        ChannelError: from `receive`, when nothing came within the time limit.
    """

    def __init__(self) -> None:
        self._directory = ScratchDirectory("ultraserve-")
        self.address = f"ipc://{self._directory.path / 'hub'}"
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.copy_threshold = _COPY_BELOW_BYTES
        self._socket.bind(self.address)
        self._codec = Codec()

    def send(self, chip: int, message: Message) -> None:
        """Send `message` to `chip`."""
        frames = self._codec.encode(message)
        try:
            self._socket.send_multipart([_identity(chip), *frames], copy=False)
        except zmq.ZMQError as error:
            raise ChannelError(f"chip {chip} cannot be reached: {error}") from error

    def send_all(self, messages: Mapping[int, Message]) -> None:
        """Send one message to each chip of `messages`."""
        for chip, message in messages.items():
            self.send(chip, message)

    def receive(self, count: int, timeout_s: float) -> Iterator[tuple[int, Message]]:
        """Yield `count` messages as they come, each with its chip."""
        for got in range(count):
            if not self._socket.poll(int(timeout_s * 1000)):
                raise ChannelError(f"{count - got} of {count} chips silent for {timeout_s:g} s")
            identity, *frames = self._socket.recv_multipart(copy=True)
            yield int.from_bytes(identity[1:], "little"), self._codec.decode(frames)

    def close(self) -> None:
        """Close the socket and remove its directory; idempotent."""
        self._socket.close()
        self._context.term()
        self._directory.remove()


class Spoke:
    """A chip's end of the channel."""

    def __init__(self, address: str, chip: int) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, _identity(chip))
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.copy_threshold = _COPY_BELOW_BYTES
        self._socket.connect(address)
        self._codec = Codec()

    def send(self, message: Message) -> None:
        """Send an effect to the hub."""
        self._socket.send_multipart(self._codec.encode(message), copy=False)

    def receive(self) -> Message:
        """Wait for the next command."""
        return self._codec.decode(self._socket.recv_multipart(copy=True))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._context.term()


def _identity(chip: int) -> bytes:
    # ZeroMQ reserves identities that begin with a zero byte.
    return b"c" + chip.to_bytes(4, "little")
