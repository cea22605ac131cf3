"""What the control service asks of the engine, and what the engine answers: JSON, one line each.

A call goes from the API's process to the engine's through vLLM's `collective_rpc`, is applied
between two steps, and comes back as one string. Whatever does not fit these types is a mistake of
ours on one of the two sides, and raises msgspec.ValidationError there.
"""

from enum import StrEnum
from typing import Final

import msgspec

from emulator.specs.fault import Fault
from emulator.ultraserver.ceilings import Ceilings
from serving.wire.hardware import ExpertLoad, HardwareReport
from serving.wire.machine_state import (
    FOR_TRAINING,
    Count,
    FaultEvent,
    LeaseState,
    MachineState,
    Plain,
    PurposeWord,
    SleepState,
    VersionState,
)
from serving.wire.placement_page import PlacementPage
from serving.wire.power_report import PowerReport
from serving.wire.snapshot import Snapshot
from serving.wire.step_record import StepPage, StepRelief
from serving.wire.system_description import SystemDescription
from serving.wire.telemetry import Telemetry

METHOD: Final = "ultraserve_control"
"""The executor's method, to vLLM's `collective_rpc`; its one argument is a request's JSON."""

FAULTS_TOLD_MAX: Final = 256
"""Of one look: more stages than faults reach between two looks, and a bounded line."""


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


class RecordRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="record"):
    """Begins to record steps, in place of the recording before; ends the recording `ends`."""

    ends: Count | None = None
    steps_max: int | None = None


class RecordingRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="recording"):
    """Asks how far a recording is."""

    recording: Count


class StepsRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="steps"):
    """Asks for a page of records."""

    recording: Count
    first_step: Count


class ReliefRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="relief"):
    """Asks for a sampled step with things that are `factor` times as fast."""

    recording: Count
    sample: int
    factor: float


class DrainRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="drain"):
    """Asks to take chips out of service: whole ranks, in service, at least one other rank stays.

    For training they are lent out, if a training state fits their HBM; maintenance takes none.
    Their requests have `grace_s` emulated seconds to end; then those that are left go on elsewhere.
    A dry run answers what would happen, and changes nothing.
    """

    chips: tuple[Count, ...]
    grace_s: float
    dry_run: bool = False
    purpose: PurposeWord = FOR_TRAINING


class ResumeRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="resume"):
    """Asks for a lease's chips back; one that still drains is called off."""

    lease: Count


class TrainingNote(Plain, frozen=True, kw_only=True, tag_field="method", tag="training"):
    """Tells what the job on a lease's chips has done since it was handed them; see TrainingTotals.

    The engine's energy counts the chips at idle all along, and what they drew beyond it as told.
    """

    lease: Count
    steps: Count
    tokens: Count
    loss: float | None
    joules: float
    emulated_s: float
    watts: float
    hbm_bytes_per_chip: Count


class PublishRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="publish"):
    """Asks to serve the checkpoint in `weights_dir` from now on, block by block.

    It has the architecture and the tokenizer of what is served. The directory has to stay as it is
    while it may be served; `note` says in one line where it comes from.
    """

    weights_dir: str
    note: str = ""


class RollbackRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="rollback"):
    """Asks to serve the version before again."""


class WatchRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="watch"):
    """Asks for what changes while the engine runs; may be asked several times a second."""


class DescribeRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="describe"):
    """Asks for what is emulated."""


class PlacementRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="placement"):
    """Asks where experts lie, in layers from `first_layer` on."""

    first_layer: Count


class PowerRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="power"):
    """Asks for power and energy."""


class TelemetryRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="telemetry"):
    """Asks for one look at the engine; may be asked several times a second.

    Attributes:
        events_after: stages of faults after that one's number are told; none are without it.
    """

    events_after: Count | None = None


class HardwareRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="hardware"):
    """Asks for everything that a dashboard shows; may be asked several times a second."""


class ExpertLoadRequest(Plain, frozen=True, kw_only=True, tag_field="method", tag="expert-load"):
    """Asks how often experts are chosen."""


ControlRequest = (
    StateRequest
    | WatchRequest
    | DescribeRequest
    | PlacementRequest
    | PowerRequest
    | TelemetryRequest
    | HardwareRequest
    | ExpertLoadRequest
    | InjectRequest
    | HealRequest
    | RecordRequest
    | RecordingRequest
    | StepsRequest
    | ReliefRequest
    | DrainRequest
    | ResumeRequest
    | TrainingNote
    | PublishRequest
    | RollbackRequest
)

Shown = (
    DescribeRequest
    | PlacementRequest
    | PowerRequest
    | TelemetryRequest
    | HardwareRequest
    | ExpertLoadRequest
)
"""Requests that change nothing."""


class StateReply(Plain, frozen=True, kw_only=True, tag_field="reply", tag="state"):
    """Answers StateRequest."""

    state: MachineState


class FaultReport(Plain, frozen=True, kw_only=True, tag_field="reply", tag="fault"):
    """Answers InjectRequest.

    Attributes:
        accepted: the fault has happened; False for a dry run.
        survivable: every accepted request can still be answered; `reason` says why or why not.
        number: of the fault in the state's `faults`; None when it was not accepted.
        stall_s: emulated seconds for which the machine stands still because of it, until it is
            noticed and weights are read; `stall_wall_s` is the wall time that they take now.
    """

    accepted: bool
    survivable: bool
    reason: str
    number: Count | None = None
    stall_s: float = 0.0
    stall_wall_s: float = 0.0


class HealReport(Plain, frozen=True, kw_only=True, tag_field="reply", tag="healed"):
    """Answers HealRequest with the numbers of the faults that are over."""

    healed: tuple[Count, ...]


class RecordingState(Plain, frozen=True, kw_only=True, tag_field="reply", tag="recording"):
    """Answers RecordRequest and RecordingRequest.

    Attributes:
        recording: its number; counts the engine's recordings from 1.
        steps: since it began; the first `dropped` of them are not kept.
        samples: steps of which a relief can be asked.
        begin_ns: the emulated time at which it began; `now_ns` is when it ended, or now.
        ceilings: of each chip, for shares of what it could do.
    """

    recording: Count
    on: bool
    steps: Count
    dropped: Count
    samples: Count
    begin_ns: Count
    now_ns: Count
    ceilings: Ceilings


class StepsReply(Plain, frozen=True, kw_only=True, tag_field="reply", tag="steps"):
    """Answers StepsRequest."""

    page: StepPage


class ReliefReply(Plain, frozen=True, kw_only=True, tag_field="reply", tag="relief"):
    """Answers ReliefRequest."""

    relief: StepRelief


class LeaseReport(Plain, frozen=True, kw_only=True, tag_field="reply", tag="lease"):
    """Answers DrainRequest, ResumeRequest and TrainingNote.

    `lease` is None for a dry run, and while a controller has yet to begin; `reason` says in one
    line what happens, or would.
    """

    lease: LeaseState | None
    reason: str


class VersionReport(Plain, frozen=True, kw_only=True, tag_field="reply", tag="version"):
    """Answers PublishRequest and RollbackRequest.

    Attributes:
        version: that every block will serve; `weights` is its name in responses.
        waiting_blocks: that have yet to read it.
    """

    version: Count
    weights: str
    waiting_blocks: Count


class WatchReply(Plain, frozen=True, kw_only=True, tag_field="reply", tag="watch"):
    """Answers WatchRequest.

    Attributes:
        emulated_s: now, also between two steps; `dilation` as in MachineState.
        arrived_requests: all since the engine's start, as of its last step.
        running, waiting: requests of all ranks.
        leases, versions: as in MachineState.
    """

    emulated_s: float
    dilation: float
    arrived_requests: Count
    running: Count
    waiting: Count
    leases: tuple[LeaseState, ...]
    versions: tuple[VersionState, ...]


class DescribeReply(Plain, frozen=True, kw_only=True, tag_field="reply", tag="describe"):
    """Answers DescribeRequest."""

    description: SystemDescription


class PlacementReply(Plain, frozen=True, kw_only=True, tag_field="reply", tag="placement"):
    """Answers PlacementRequest."""

    page: PlacementPage


class PowerReply(Plain, frozen=True, kw_only=True, tag_field="reply", tag="power"):
    """Answers PowerRequest."""

    report: PowerReport


class TelemetryReply(Plain, frozen=True, kw_only=True, tag_field="reply", tag="telemetry"):
    """Answers TelemetryRequest.

    Attributes:
        fault_event_number: of the newest stage that a fault has reached; 0 before the first.
        fault_events: the stages that were asked for, the last `FAULTS_TOLD_MAX` of them.
        leases, versions, sleep: as in MachineState.
    """

    telemetry: Telemetry
    leases: tuple[LeaseState, ...]
    versions: tuple[VersionState, ...]
    sleep: SleepState
    fault_event_number: Count = 0
    fault_events: tuple[FaultEvent, ...] = ()


class HardwareReply(Plain, frozen=True, kw_only=True, tag_field="reply", tag="hardware"):
    """Answers HardwareRequest; `snapshot` is of the same moment, not of the last step's end."""

    report: HardwareReport
    snapshot: Snapshot


class ExpertLoadReply(Plain, frozen=True, kw_only=True, tag_field="reply", tag="expert-load"):
    """Answers ExpertLoadRequest."""

    load: ExpertLoad


class RefusalCode(StrEnum):
    """INVALID: no such chip, stack, ... on this machine. PRECONDITION: it cannot happen now."""

    INVALID = "invalid"
    PRECONDITION = "precondition"


class Refusal(Plain, frozen=True, kw_only=True, tag_field="reply", tag="refused"):
    """Answers any request; nothing has changed. `message` is one line for the user.

    `field` is what was wrong of the request, for INVALID where one thing was.
    """

    code: RefusalCode
    message: str
    field: str | None = None


ControlReply = (
    StateReply
    | FaultReport
    | HealReport
    | RecordingState
    | StepsReply
    | ReliefReply
    | LeaseReport
    | VersionReport
    | WatchReply
    | DescribeReply
    | PlacementReply
    | PowerReply
    | TelemetryReply
    | HardwareReply
    | ExpertLoadReply
    | Refusal
)

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
