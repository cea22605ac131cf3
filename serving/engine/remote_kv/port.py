"""The port at which an engine gives out keys and values, by threads of its own: a reader does not
wait for the end of a step.
"""

import contextlib
import logging
import socket
import threading
from typing import Final

from emulator.errors import ConfigError
from serving.engine.remote_kv.connection import KvConnection, accepted
from serving.engine.remote_kv.messages import (
    BlocksOfChip,
    EngineFacts,
    Gone,
    KvMessage,
    Pull,
    Release,
    Taken,
    There,
)
from serving.engine.remote_kv.offers import KvOffer, KvOffers

CONNECTIONS_MAX: Final = 128
"""Engines, and strangers that have yet to prove the key, at a time."""

_Reader = tuple[KvConnection, str]
"""A reader's connection, and its name for the read."""

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the engine's process shows


class KvPort:
    """Listens at an address for engines with the `key`; raises ConfigError where it cannot."""

    def __init__(
        self, host: str, port: int, *, key: bytes, facts: EngineFacts, offers: KvOffers
    ) -> None:
        self._key = key
        self._facts = facts
        self._offers = offers
        self._open = threading.Lock()
        self._readers: dict[str, _Reader] = {}  # by request
        self._connections: set[KvConnection] = set()
        self._served = 0  # with those that have yet to prove the key
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, port), family=family)
        except OSError as error:
            expected = f"an address to listen on ({error.strerror})"
            raise ConfigError("VLLM_NIXL_SIDE_CHANNEL_PORT", f"{host}:{port}", expected) from error
        self.number: int = self._listener.getsockname()[1]
        offers.on_loss = self._tell_loss
        threading.Thread(target=self._listen, name="kv-port", daemon=True).start()

    def close(self) -> None:
        """Close it and all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._open:
            connections = tuple(self._connections)
        for each in connections:
            each.close()

    def _listen(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:  # closed
                return
            with self._open:
                is_full = self._served >= CONNECTIONS_MAX
                self._served += not is_full
            if is_full:
                logger.warning("KV port: a connection beyond %d is closed", CONNECTIONS_MAX)
                connected.close()
                continue
            serve = threading.Thread(target=self._serve, args=(connected,), daemon=True)
            serve.start()

    def _serve(self, connected: socket.socket) -> None:
        try:
            self._talk(accepted(connected, self._key))
        except OSError as error:
            logger.warning("KV port: a connection is refused: %s", error)
            connected.close()
        finally:
            with self._open:
                self._served -= 1

    def _talk(self, connection: KvConnection) -> None:
        with self._open:
            self._connections.add(connection)
        try:
            connection.send(self._facts)
            other = connection.receive()
            if not isinstance(other, EngineFacts):
                raise ConnectionError("an engine says first who it is")
            while True:
                self._answer(connection, connection.receive(), other)
        except (OSError, EOFError):
            pass  # it reads no more
        finally:
            self._leave(connection)

    def _answer(self, connection: KvConnection, message: KvMessage, other: EngineFacts) -> None:
        match message:
            case Pull():
                connection.send(self._blocks(connection, message))
            case Taken() | Release():
                if not self._ends(connection, message):
                    return
                sent_tokens = message.tokens if isinstance(message, Taken) else 0
                self._offers.end(message.request_id, sent_tokens=sent_tokens, to_chips=other.tp)
            case _:
                raise ConnectionError("a message that only this side sends")

    def _blocks(self, connection: KvConnection, pull: Pull) -> There | Gone:
        offer = self._offers.read(pull.request_id)
        reason = "it is not held here, or no longer" if offer is None else _misfit(offer, pull)
        if offer is None or reason is not None:
            if offer is not None:
                self._offers.put_back(pull.request_id)
            return Gone(read=pull.read, reason=str(reason))
        with self._open:
            self._readers[pull.request_id] = connection, pull.read
        chips = [BlocksOfChip.of(each, pull.first_block) for each in offer.kv or ()]
        return There(read=pull.read, chips=chips)

    def _ends(self, connection: KvConnection, message: Taken | Release) -> bool:
        """Whether it ends what is held: its reader's word, or, while none reads, a request's that
        has no need of it.
        """
        said = None if message.read is None else (connection, message.read)
        with self._open:
            if self._readers.get(message.request_id) != said:
                return False
            self._readers.pop(message.request_id, None)
        return True

    def _tell_loss(self, request_id: str) -> None:
        with self._open:
            reader = self._readers.pop(request_id, None)
        if reader is not None:
            connection, read = reader
            with contextlib.suppress(OSError):  # it is gone itself
                connection.send(Gone(read=read, reason="a chip that held it was lost"))

    def _leave(self, connection: KvConnection) -> None:
        connection.close()
        with self._open:
            self._connections.discard(connection)
            left = [name for name, (each, _) in self._readers.items() if each is connection]
            for name in left:
                del self._readers[name]
        for name in left:
            self._offers.put_back(name)


def _misfit(offer: KvOffer, pull: Pull) -> str | None:
    if pull.tokens > offer.tokens:
        return f"it is of {offer.tokens} tokens, the prompt has {pull.tokens}"
    if pull.prompt != offer.prompt:
        return "it is of another prompt"
    if pull.weights != offer.weights:
        return f"weights {offer.weights} computed it, here are {pull.weights}"
    return None
