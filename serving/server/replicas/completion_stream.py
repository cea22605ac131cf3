"""The events of one streamed completion or chat, from the replicas that made it to its client.

The replica is asked for its usage, by which the request's tokens are counted; a client that has not
asked for it gets none. vLLM then names the model version beside the usage; here the last event has
it, as the client expects. Pure: no socket.
"""

from typing import Any, Final

import msgspec

from serving.policy.admission.refusal import RefusalReason
from serving.server.replicas.sent_stream import SentChoices

_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"
_FINGERPRINT: Final = "system_fingerprint"
_SAME: Final = ("id", "created")
"""Fields that all events of a stream share, drawn or read by the replica."""

_ABORTED: Final = "abort"
"""vLLM's finish reason of a request that its server has cut off."""

_SERVER_ERRORS: Final = frozenset(
    str(reason) for reason in RefusalReason if reason.is_of_server
) | {"InternalServerError", "server_error", "service_unavailable"}


class ReplicaFailed(Exception):
    """A replica ended a request for a reason of its own: the beginning of what it said."""

    def __init__(self, event: bytes) -> None:
        super().__init__(event[:200].decode(errors="replace"))


class CompletionStream:
    """One client's stream; `shows_usage` where the client has asked for it.

    `tokens` counts events with news, about one a token, until `usage` is known.
    """

    def __init__(self, *, shows_usage: bool) -> None:
        self._shows_usage = shows_usage
        self._sent = SentChoices()
        self._same: dict[str, Any] = {}
        self._repeats = False
        self._held: dict[str, Any] | None = None
        self._usage_sent = False
        self.usage: dict[str, Any] | None = None
        self.tokens = 0
        self.done = False

    def again(self) -> None:
        """A repetition begins, on another replica."""
        self._repeats = True
        self._sent.again()

    def take(self, event: bytes) -> list[bytes]:
        """The events to send for one that came, each with its end.

        Raises ReplicaFailed for an error of the replica's, StreamDiverged for another text.
        """
        if not event.startswith(_DATA):
            return []  # a comment
        payload = event[len(_DATA) :]
        if payload == _DONE:
            self.done = True
            return [*self._release(), event + b"\n\n"]
        said: dict[str, Any] = msgspec.json.decode(payload)
        if "error" in said:
            if is_of_server(said["error"]):
                raise ReplicaFailed(event)
            return [*self._release(), event + b"\n\n"]
        if self._repeats:
            said |= self._same
        elif not self._same:
            self._same = {name: said[name] for name in _SAME if name in said}
        if not said.get("choices") and said.get("usage") is not None:
            return self._take_usage(said)
        return self._take_choices(said, event)

    def _take_choices(self, said: dict[str, Any], event: bytes) -> list[bytes]:
        choices = said.get("choices", [])
        if any(choice.get("finish_reason") == _ABORTED for choice in choices):
            raise ReplicaFailed(event)
        new = self._sent.take(choices)
        if self._repeats:
            if not new:
                return []
            said["choices"] = new
        self.tokens += 1
        released = self._release()
        if any(choice.get("finish_reason") for choice in said.get("choices", [])):
            self._held = said  # until the usage, right after the last of them, names the version
            return released
        return [*released, _event(said) if self._repeats else event + b"\n\n"]

    def _take_usage(self, said: dict[str, Any]) -> list[bytes]:
        self.usage = said["usage"]
        if self._shows_usage:
            released = self._release()
            if self._usage_sent:
                return released
            self._usage_sent = True
            return [*released, _event(said)]
        if self._held is not None and _FINGERPRINT in said:
            self._held[_FINGERPRINT] = said[_FINGERPRINT]
        return self._release()

    def _release(self) -> list[bytes]:
        held, self._held = self._held, None
        return [] if held is None else [_event(held)]


def is_of_server(error: Any) -> bool:
    """Whether an error is the replica's, and not the request's."""
    if not isinstance(error, dict):
        return True
    code = error.get("code")
    if isinstance(code, int):
        return code >= 500
    return bool({str(code), str(error.get("type"))} & _SERVER_ERRORS)


def _event(said: dict[str, Any]) -> bytes:
    return _DATA + msgspec.json.encode(said) + b"\n\n"
