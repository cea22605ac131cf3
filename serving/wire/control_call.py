"""The table of control calls, and what the engine is asked and answers for them.

A call goes from the API's process to the engine's through vLLM's `collective_rpc`, is applied
between two steps, and comes back as one string: JSON, one line each way. Text that does not fit
these types is a mistake of ours on one of the two sides, and raises msgspec.ValidationError there.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import or_
from types import NoneType
from typing import Any, Final, Generic, TypeVar

import msgspec

from emulator.errors import ConfigError
from emulator.specs.fault import Fault
from emulator.ultraserver.ceilings import Ceilings
from serving.policy.rank_roles import RankRole
from serving.wire.admission_report import AdmissionReport
from serving.wire.day_night_state import DayNightState
from serving.wire.machine_snapshot import ExpertChoices, MachineSnapshot
from serving.wire.machine_state import (
    FOR_TRAINING,
    Count,
    FaultEvent,
    LeaseState,
    MachineState,
    Plain,
    PurposeWord,
    SleepState,
    TrainingTotals,
    VersionState,
)
from serving.wire.placement_page import PlacementPage
from serving.wire.power_report import MachinePower
from serving.wire.step_record import StepPage, StepWhatIf
from serving.wire.system_description import SystemDescription
from serving.wire.telemetry import Telemetry

METHOD: Final = "ultraserve_control"
"""The executor's method, to vLLM's `collective_rpc`; its one argument is a request's JSON."""

FAULTS_TOLD_MAX: Final = 256
"""Of one look: more stages than faults reach between two looks, and a bounded line."""


class ControlRequest(Plain, frozen=True, kw_only=True, tag_field="method"):
    """What the engine is asked. Each subclass has a tag, and the fields of its call's request."""


class ControlReply(Plain, frozen=True, kw_only=True, tag_field="reply"):
    """What the engine answers; each subclass has a tag."""


class StateRequest(ControlRequest, frozen=True, kw_only=True, tag="state"):
    """Asks for the whole machine."""


class InjectRequest(ControlRequest, frozen=True, kw_only=True, tag="inject"):
    """Lets a fault happen, or only asks whether it would be survived."""

    fault: Fault
    dry_run: bool = False


class HealRequest(ControlRequest, frozen=True, kw_only=True, tag="heal"):
    """Repairs one chip or one rack's switch trays; everything when neither is given."""

    chip: Count | None = None
    rack: Count | None = None


class RolesRequest(ControlRequest, frozen=True, kw_only=True, tag="roles"):
    """Asks what each rank does."""


class SetRoleRequest(ControlRequest, frozen=True, kw_only=True, tag="set_role"):
    """Gives a rank another role; `all_ranks`: the whole engine, as a replica with a role."""

    rank: Count
    role: RankRole
    all_ranks: bool = False


class RecordRequest(ControlRequest, frozen=True, kw_only=True, tag="record"):
    """Begins to record steps, in place of the recording before; ends the recording `ends`."""

    ends: Count | None = None
    steps_max: int | None = None


class RecordingRequest(ControlRequest, frozen=True, kw_only=True, tag="recording"):
    """Asks how far a recording is."""

    recording: Count


class StepsRequest(ControlRequest, frozen=True, kw_only=True, tag="steps"):
    """Asks for a page of records."""

    recording: Count
    first_step: Count


class WhatIfRequest(ControlRequest, frozen=True, kw_only=True, tag="what-if"):
    """Asks for a sampled step with one resource after another `factor` times as fast."""

    recording: Count
    sample: int
    factor: float

    def __post_init__(self) -> None:
        if not 1 < self.factor < float("inf"):
            raise ConfigError("factor", self.factor, "a number above 1")


class DrainRequest(ControlRequest, frozen=True, kw_only=True, tag="drain"):
    """Asks to take chips out of service: whole ranks, in service, at least one other rank stays.

    For training they are lent out, if a training state fits their HBM; maintenance takes none.
    Their requests have `grace_s` emulated seconds to end; then those that are left go on elsewhere.
    A dry run answers what would happen, and changes nothing.
    """

    chips: tuple[Count, ...]
    grace_s: float
    dry_run: bool = False
    purpose: PurposeWord = FOR_TRAINING


class ResumeRequest(ControlRequest, frozen=True, kw_only=True, tag="resume"):
    """Asks for a lease's chips back; one that still drains is called off."""

    lease: Count


class TrainingNote(ControlRequest, frozen=True, kw_only=True, tag="training"):
    """Tells what the job on a lease's chips has done since it was handed them.

    The engine's energy counts the chips at idle all along, and what they drew beyond it as told.
    """

    lease: Count
    totals: TrainingTotals


class PublishRequest(ControlRequest, frozen=True, kw_only=True, tag="publish"):
    """Asks to serve the checkpoint in `weights_dir` from now on, block by block.

    It has the architecture and the tokenizer of what is served. The directory has to stay as it is
    while it may be served; `note` says in one line where it comes from.
    """

    weights_dir: str
    note: str = ""


class RollbackRequest(ControlRequest, frozen=True, kw_only=True, tag="rollback"):
    """Asks to serve the version before again."""


class WatchRequest(ControlRequest, frozen=True, kw_only=True, tag="watch"):
    """Asks for what changes while the engine runs; may be asked several times a second."""


class DescribeRequest(ControlRequest, frozen=True, kw_only=True, tag="describe"):
    """Asks for what is emulated."""


class ClockRequest(ControlRequest, frozen=True, kw_only=True, tag="clock"):
    """Asks what time it is."""


class PlacementRequest(ControlRequest, frozen=True, kw_only=True, tag="placement"):
    """Asks where experts lie, in layers from `first_layer` on."""

    first_layer: Count


class PowerRequest(ControlRequest, frozen=True, kw_only=True, tag="power"):
    """Asks for power and energy."""


class TelemetryRequest(ControlRequest, frozen=True, kw_only=True, tag="telemetry"):
    """Asks for one look at the engine; may be asked several times a second.

    Stages of faults after the number `events_after` are told; none are without it.
    """

    events_after: Count | None = None


class SnapshotRequest(ControlRequest, frozen=True, kw_only=True, tag="snapshot"):
    """Asks for everything that a dashboard shows; may be asked several times a second."""


class ExpertLoadRequest(ControlRequest, frozen=True, kw_only=True, tag="expert-load"):
    """Asks how often experts are chosen."""


class StateReply(ControlReply, frozen=True, kw_only=True, tag="state"):
    """Answers StateRequest."""

    state: MachineState


class FaultReport(ControlReply, frozen=True, kw_only=True, tag="fault"):
    """Answers InjectRequest; see fault.proto. `number` is None when it was not accepted."""

    accepted: bool
    survivable: bool
    reason: str
    number: Count | None = None
    stall_s: float = 0.0
    stall_wall_s: float = 0.0


class HealReport(ControlReply, frozen=True, kw_only=True, tag="healed"):
    """Answers HealRequest with the numbers of the faults that are over."""

    healed: tuple[Count, ...]


class RankWithRole(Plain, frozen=True, kw_only=True):
    """A rank, and what it does."""

    rank: Count
    role: RankRole


class RolesReport(ControlReply, frozen=True, kw_only=True, tag="roles"):
    """Answers RolesRequest and SetRoleRequest: every rank, in order, as from the next step on."""

    ranks: tuple[RankWithRole, ...]


class RecordingState(ControlReply, frozen=True, kw_only=True, tag="recording"):
    """Answers RecordRequest and RecordingRequest; see recording.proto."""

    recording: Count
    on: bool
    steps: Count
    dropped: Count
    samples: Count
    begin_ns: Count
    now_ns: Count
    ceilings: Ceilings


class StepsReply(ControlReply, frozen=True, kw_only=True, tag="steps"):
    """Answers StepsRequest."""

    page: StepPage


class WhatIfReply(ControlReply, frozen=True, kw_only=True, tag="what-if"):
    """Answers WhatIfRequest."""

    what_if: StepWhatIf


class LeaseReport(ControlReply, frozen=True, kw_only=True, tag="lease"):
    """Answers DrainRequest, ResumeRequest and TrainingNote.

    `lease` is None for a dry run, and while a controller has yet to begin; `reason` says in one
    line what happens, or would.
    """

    lease: LeaseState | None
    reason: str


class VersionReport(ControlReply, frozen=True, kw_only=True, tag="version"):
    """Answers PublishRequest and RollbackRequest; see weights.proto."""

    version: Count
    weights: str
    waiting_blocks: Count


class WatchReply(ControlReply, frozen=True, kw_only=True, tag="watch"):
    """Answers WatchRequest, with requests of all ranks.

    `arrived_requests` are all since the engine's start, as of its last step.
    """

    emulated_s: float
    dilation: float
    arrived_requests: Count
    running: Count
    waiting: Count
    leases: tuple[LeaseState, ...]
    versions: tuple[VersionState, ...]


class ClockState(ControlReply, frozen=True, kw_only=True, tag="clock"):
    """Answers ClockRequest; `unix_s` is the same moment by the engine's host."""

    emulated_s: float
    dilation: float
    unix_s: float


class DescribeReply(ControlReply, frozen=True, kw_only=True, tag="describe"):
    """Answers DescribeRequest."""

    description: SystemDescription


class PlacementReply(ControlReply, frozen=True, kw_only=True, tag="placement"):
    """Answers PlacementRequest."""

    page: PlacementPage


class PowerReply(ControlReply, frozen=True, kw_only=True, tag="power"):
    """Answers PowerRequest."""

    report: MachinePower


class TelemetryReply(ControlReply, frozen=True, kw_only=True, tag="telemetry"):
    """Answers TelemetryRequest.

    Attributes:
        fault_event_number: of the newest stage that a fault has reached; 0 before the first.
        fault_events: the stages that were asked for, the last `FAULTS_TOLD_MAX` of them.
    """

    telemetry: Telemetry
    leases: tuple[LeaseState, ...]
    versions: tuple[VersionState, ...]
    sleep: SleepState
    fault_event_number: Count = 0
    fault_events: tuple[FaultEvent, ...] = ()


class SnapshotReply(ControlReply, frozen=True, kw_only=True, tag="snapshot"):
    """Answers SnapshotRequest."""

    snapshot: MachineSnapshot


class ExpertLoadReply(ControlReply, frozen=True, kw_only=True, tag="expert-load"):
    """Answers ExpertLoadRequest."""

    load: ExpertChoices


class RefusalCode(StrEnum):
    """INVALID: no such chip, stack, ... on this machine. PRECONDITION: it cannot happen now."""

    INVALID = "invalid"
    PRECONDITION = "precondition"


class Refusal(ControlReply, frozen=True, kw_only=True, tag="refused"):
    """Answers any request; nothing has changed. `message` is one line for the user.

    `field` is what was wrong of the request, for INVALID where one thing was.
    """

    code: RefusalCode
    message: str
    field: str | None = None


# Each has a tag of its own, so that a line says which of them it is.
_request_decoder: Final = msgspec.json.Decoder(reduce(or_, ControlRequest.__subclasses__()))
_reply_decoder: Final = msgspec.json.Decoder(reduce(or_, ControlReply.__subclasses__()))


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


class EngineSleepState(Plain, frozen=True, kw_only=True):
    """Whether the engine sleeps, and whether it holds requests back."""

    sleeping: bool
    paused: bool


ShownT_co = TypeVar("ShownT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc(Generic[ShownT_co]):
    """A unary call of ControlService: its row in the table.

    Attributes:
        name: the method's in control.proto.
        shows: what the first field of its response says; NoneType for a response without fields.
        asks: what the engine is asked, with the fields of the call's request; None: a function of
            the API's process answers, see `serving.server.control.control_service`.
        keeps_last: an engine that is busy is shown as it last was.
    """

    name: str
    shows: type[ShownT_co]
    asks: type[ControlRequest] | None = None
    keeps_last: bool = False

    @property
    def only_reads(self) -> bool:
        """Whether it changes nothing."""
        return only_reads(self.name)


def only_reads(name: str) -> bool:
    """Whether a method's name says that it changes nothing; such a call has no idempotency key."""
    return name.startswith(("Get", "Describe", "Watch"))


DESCRIBE_SYSTEM: Final = Rpc(
    name="DescribeSystem", shows=SystemDescription, asks=DescribeRequest, keeps_last=True
)
GET_CLOCK: Final = Rpc(name="GetClock", shows=ClockState, asks=ClockRequest)
GET_STATE: Final = Rpc(name="GetState", shows=MachineState, asks=StateRequest, keeps_last=True)
GET_PLACEMENT: Final = Rpc(
    name="GetPlacement", shows=PlacementPage, asks=PlacementRequest, keeps_last=True
)
GET_POWER: Final = Rpc(name="GetPower", shows=MachinePower, asks=PowerRequest, keeps_last=True)
GET_HARDWARE: Final = Rpc(name="GetHardware", shows=MachineSnapshot)
GET_EXPERT_LOAD: Final = Rpc(
    name="GetExpertLoad", shows=ExpertChoices, asks=ExpertLoadRequest, keeps_last=True
)
INJECT_FAULT: Final = Rpc(name="InjectFault", shows=FaultReport, asks=InjectRequest)
HEAL: Final = Rpc(name="Heal", shows=HealReport, asks=HealRequest)
GET_RANK_ROLES: Final = Rpc(name="GetRankRoles", shows=RolesReport, asks=RolesRequest)
SET_RANK_ROLE: Final = Rpc(name="SetRankRole", shows=RolesReport, asks=SetRoleRequest)
RECORD_STEPS: Final = Rpc(name="RecordSteps", shows=RecordingState, asks=RecordRequest)
GET_RECORDING: Final = Rpc(name="GetRecording", shows=RecordingState, asks=RecordingRequest)
GET_STEPS: Final = Rpc(name="GetSteps", shows=StepPage, asks=StepsRequest)
GET_WHAT_IF: Final = Rpc(name="GetWhatIf", shows=StepWhatIf, asks=WhatIfRequest)
DRAIN: Final = Rpc(name="Drain", shows=LeaseReport)
RESUME: Final = Rpc(name="Resume", shows=LeaseReport)
GET_DAY_NIGHT: Final = Rpc(name="GetDayNight", shows=DayNightState)
SET_POLICY: Final = Rpc(name="SetPolicy", shows=DayNightState)
SET_PHASE: Final = Rpc(name="SetPhase", shows=DayNightState)
PUBLISH: Final = Rpc(name="Publish", shows=VersionReport)
ROLLBACK: Final = Rpc(name="Rollback", shows=VersionReport, asks=RollbackRequest)
SLEEP: Final = Rpc(name="Sleep", shows=EngineSleepState)
WAKE_UP: Final = Rpc(name="WakeUp", shows=EngineSleepState)
PAUSE_GENERATION: Final = Rpc(name="PauseGeneration", shows=EngineSleepState)
RESUME_GENERATION: Final = Rpc(name="ResumeGeneration", shows=EngineSleepState)
GET_REST: Final = Rpc(name="GetRest", shows=EngineSleepState)
RESET_PREFIX_CACHE: Final = Rpc(name="ResetPrefixCache", shows=NoneType)
GET_ADMISSION: Final = Rpc(name="GetAdmission", shows=AdmissionReport)
DRAIN_ENGINE: Final = Rpc(name="DrainEngine", shows=AdmissionReport)
UNDRAIN_ENGINE: Final = Rpc(name="UndrainEngine", shows=AdmissionReport)

RPCS: Final[dict[str, Rpc[Any]]] = {
    row.name: row
    for row in (
        *(DESCRIBE_SYSTEM, GET_CLOCK, GET_STATE, GET_PLACEMENT, GET_POWER, GET_HARDWARE),
        *(GET_EXPERT_LOAD, INJECT_FAULT, HEAL, GET_RANK_ROLES, SET_RANK_ROLE),
        *(RECORD_STEPS, GET_RECORDING, GET_STEPS, GET_WHAT_IF),
        *(DRAIN, RESUME, GET_DAY_NIGHT, SET_POLICY, SET_PHASE, PUBLISH, ROLLBACK),
        *(SLEEP, WAKE_UP, PAUSE_GENERATION, RESUME_GENERATION, GET_REST, RESET_PREFIX_CACHE),
        *(GET_ADMISSION, DRAIN_ENGINE, UNDRAIN_ENGINE),
    )
}
"""The table: every unary call, by its name. A stream has no row; see `control_service`."""

FORMER_NAMES: Final = {"GetRelief": "GetWhatIf"}
"""Deprecated methods, gone in the next release, and their rows. Both have messages of the same
bytes, so the row's handler answers both."""
