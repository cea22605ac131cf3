"""What the control service asks of the engine, and what the engine answers: JSON, one line each.

A call goes from the API's process to the engine's through vLLM's `collective_rpc`, is applied
between two steps, and comes back as one string. Whatever does not fit these types is a mistake of
ours on one of the two sides, and raises msgspec.ValidationError there.
"""

from enum import StrEnum
from typing import Final

import msgspec

from emulator.specs.fault import Fault
from serving.metrics.machine_state import Count, MachineState, Plain

METHOD: Final = "ultraserve_control"
"""The executor's method, to vLLM's `collective_rpc`; its one argument is a request's JSON."""


class StateRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="state"):
    """Asks for the whole machine."""


class InjectRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="inject"):
    """Lets a fault happen, or only asks whether it would be survived."""

    fault: Fault
    dry_run: bool = False


class HealRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="heal"):
    """Repairs one chip or one rack's switch trays; everything when neither is given."""

    chip: Count | None = None
    rack: Count | None = None


ControlRequest = StateRequest | InjectRequest | HealRequest


class StateReply(Plain, frozen=True, kw_only=True, tag_field="reply", tag="state"):
    """Answers StateRequest."""

    state: MachineState


class FaultReport(Plain, frozen=True, kw_only=True, tag_field="reply", tag="fault"):
    """Answers InjectRequest.

    Attributes:
        accepted: the fault has happened; False for a dry run.
        survivable: every accepted request can still be answered; `reason` says why or why not.
        number: of the fault in the state's `faults`; None when it was not accepted.
    """

    accepted: bool
    survivable: bool
    reason: str
    number: Count | None = None


class HealReport(Plain, frozen=True, kw_only=True, tag_field="reply", tag="healed"):
    """Answers HealRequest with the numbers of the faults that are over."""

    healed: tuple[Count, ...]


class RefusalCode(StrEnum):
    """INVALID: no such chip, stack, ... on this machine. PRECONDITION: it cannot happen now."""

    INVALID = "invalid"
    PRECONDITION = "precondition"


class Refusal(Plain, frozen=True, kw_only=True, tag_field="reply", tag="refused"):
    """Answers any request; nothing has changed. `message` is one line for the user."""

    code: RefusalCode
    message: str


ControlReply = StateReply | FaultReport | HealReport | Refusal

_request_decoder: Final = msgspec.json.Decoder[ControlRequest](ControlRequest)
_reply_decoder: Final = msgspec.json.Decoder[ControlReply](ControlReply)


def to_json(message: ControlRequest | ControlReply) -> str:
    """One line that `request_from_json` or `reply_from_json` reads."""
    return msgspec.json.encode(message).decode()


def request_from_json(text: str) -> ControlRequest:
    """Read a request; raises msgspec.ValidationError, and ConfigError for an impossible fault."""
    request: ControlRequest = _request_decoder.decode(text)
    return request


def reply_from_json(text: str) -> ControlReply:
    """Read a reply; raises msgspec.ValidationError."""
    reply: ControlReply = _reply_decoder.decode(text)
    return reply
