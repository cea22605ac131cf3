"""What two engines tell each other of keys and values: packets of msgpack, which become one of
these types or are refused.
"""

from typing import Annotated, Final

import msgspec

from serving.engine.remote_kv.layout import KvLayout

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]


class _ToEngine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One message."""


class EngineFacts(_ToEngine, frozen=True, kw_only=True):
    """The first message of both: who an engine is, where its port is, and what its KV is of.

    `model` and `system` are those that set bytes and time; what is held there is held for `lease_s`
    emulated seconds without a heartbeat; `layout` is that of numbers, None where
    none are computed.
    """

    engine_id: str
    host: str
    port: int
    system: str
    model: str
    lease_s: Annotated[float, msgspec.Meta(gt=0)]
    token_bytes: int
    block_tokens: _Positive
    tp: _Positive
    layout: KvLayout | None

    def misfit(self, other: "EngineFacts") -> str | None:
        """What keeps KV of `other` from being read here; None if nothing does."""
        ours, theirs = self._of_kv(), other._of_kv()
        for name, here in ours.items():
            there = theirs.get(name)
            if here != there:
                return f"its {name} is {there}, here it is {here}"
        return None

    def _of_kv(self) -> dict[str, object]:
        names = ("model", "token_bytes", "block_tokens", "system")
        facts: dict[str, object] = {name: getattr(self, name) for name in names}
        computed = {} if self.layout is None else msgspec.structs.asdict(self.layout)
        return facts | {"computes": self.layout is not None} | computed


class Pull(_ToEngine, frozen=True, kw_only=True):
    """Ask for `blocks` of a request from `first_block` on; answered by parts and `There`, or by
    `Gone`.

    `read` is the reader's name for it: several may ask for the same blocks, of which one gets them.
    `tokens`, `prompt` and `weights` are what they must be of: a prompt's length and digest, and the
    hash of the weights.
    """

    request_id: str
    read: str
    first_block: _Count
    blocks: _Positive
    tokens: _Count
    prompt: bytes
    weights: str


class Push(_ToEngine, frozen=True, kw_only=True):
    """Announce `blocks` of a prompt from `first_block` on, which a step has computed, to the engine
    that is to decode it; parts and `There` follow. Answered by `Taken`, or by `Gone`, after which
    the prompt's other parts are not sent.

    `read` is the part's own name; it has `tokens` of the prompt's, which a step computed that took
    `step_ns` of emulated time and has just ended. `prompt` and `weights` as in `Pull`. Without
    blocks, the prompt is given up.
    """

    request_id: str
    read: str
    first_block: _Count
    blocks: _Count
    tokens: _Count
    prompt_tokens: _Count
    prompt: bytes
    weights: str
    step_ns: _Count
    is_last: bool


class Part(_ToEngine, frozen=True, kw_only=True):
    """The next of the numbers asked for, or pushed, in the order of `numbers_of`."""

    read: str
    data: bytes


class There(_ToEngine, frozen=True, kw_only=True):
    """All that was asked for, or announced, has been sent; where none are computed, there were no
    parts.
    """

    read: str


class Gone(_ToEngine, frozen=True, kw_only=True):
    """There is no such KV, or no longer; or there is no room for what is pushed."""

    read: str
    reason: str


class Taken(_ToEngine, frozen=True, kw_only=True):
    """The transfer of `tokens` has ended, and the blocks are needed no more; of a part that was
    pushed, it has come.
    """

    request_id: str
    read: str
    tokens: _Count


class Waits(_ToEngine, frozen=True, kw_only=True):
    """Requests wait for these, or read them: their leases begin anew."""

    request_ids: list[str]


class Release(_ToEngine, frozen=True, kw_only=True):
    """The blocks are needed no more: a `read` came to nothing, or a request had no need of one."""

    request_id: str
    read: str | None = None


KvMessage = EngineFacts | Pull | Push | Part | There | Gone | Taken | Waits | Release

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[KvMessage]] = msgspec.msgpack.Decoder(KvMessage)


def bytes_of(message: KvMessage) -> bytes:
    """As it crosses the wire."""
    return _ENCODER.encode(message)


def message_of(packet: bytes) -> KvMessage:
    """The message of a packet; raises ConnectionError for none of ours."""
    try:
        return _DECODER.decode(packet)
    except ValueError as error:  # msgspec's, or of a text that is none
        raise ConnectionError(f"a message cannot be decoded: {error}") from error
