"""Messages of one call, each read within a turn (`message_turns`)."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from serving.server.gateway.grpc.message_turns import HeldMessage, MessageLate
from serving.server.gateway.grpc.rpc_errors import CallRefused, exhausted, refused

M = TypeVar("M")

Turn = Callable[[], AbstractAsyncContextManager[HeldMessage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMessage:
    """A received message: its content, or why it cannot be read."""

    size_bytes: int
    content: Any = None
    refusal: CallRefused | None = None

    def said(self) -> Any:
        """The content; raises CallRefused."""
        if self.refusal is not None:
            raise self.refusal
        return self.content


class CallMessages:
    """The messages of one call."""

    def __init__(self, coming: AsyncIterator[ReadMessage], turn: Turn, empty: ReadMessage) -> None:
        self._coming = coming
        self._turn = turn
        self._empty = empty

    async def one(self) -> tuple[Any, HeldMessage]:
        """The only message, or an empty one, and its counted bytes; raises CallRefused."""
        async with self._turn() as held:
            message = await anext(self._coming, self._empty)
            held.has_come(message.size_bytes)
        try:
            return message.said(), held
        except CallRefused:
            held.let_go()
            raise

    async def all(self) -> AsyncIterator[Any]:
        """The messages in order, up to the last one in time; raises CallRefused."""
        came_any = False
        while True:
            try:
                async with self._turn() as held:
                    message = await anext(self._coming, None)
                    held.let_go()
            except MessageLate:
                if came_any:
                    return
                raise
            if message is None:
                return
            came_any = True
            yield message.said()


def reader(
    deserialize: Callable[[bytes], Any] | None, *, bytes_max: int
) -> Callable[[bytes], ReadMessage]:
    """A deserializer that returns a refusal for an error, which gRPC would report as INTERNAL."""

    def read(raw: bytes) -> ReadMessage:
        try:
            content = message_in(raw, deserialize or bytes, bytes_max=bytes_max, subject="engine")
        except CallRefused as refusal:
            refusal.__traceback__ = None  # which has the message in it
            return ReadMessage(size_bytes=len(raw), refusal=refusal)
        return ReadMessage(size_bytes=len(raw), content=content)

    return read


def message_in(raw: bytes, deserialize: Callable[[bytes], M], *, bytes_max: int, subject: str) -> M:
    """The parsed message; raises CallRefused for an invalid one, or above `bytes_max`."""
    if len(raw) > bytes_max:
        words = f"expected a message of at most {bytes_max} bytes, not {len(raw)}"
        raise CallRefused(exhausted("MESSAGE_BYTES", words, subject=subject))
    try:
        return deserialize(raw)
    except DecodeError as error:
        message = "the message is none of the method's request type"
        raise refused(grpc.StatusCode.INVALID_ARGUMENT, "UNREADABLE_MESSAGE", message) from error
